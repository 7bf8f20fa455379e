"""The colours of every picture, whoever draws it."""

# Okabe and Ito's eight colours, told apart with every common colour blindness (jfly.uni-koeln.de).
OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky blue": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
INK, FAINT, PAPER = "#222222", "#E4E4E4", "#FFFFFF"
LOAD, STORE, ATOMIC = OKABE_ITO["blue"], OKABE_ITO["vermillion"], OKABE_ITO["purple"]
OF_OP = {"load": LOAD, "store": STORE, "atomic": ATOMIC}
