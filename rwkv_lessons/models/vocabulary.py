"""Text as tokens and back: RWKV's "world" vocabulary from its file, or bytes.

The file is `rwkv_vocab_v20230424.txt`, which comes with the `rwkv` package and with ChatRWKV. A
line is a token's number, its text or bytes as Python writes them, and its length in bytes.
"""

import ast
import codecs

END_OF_TEXT = 0  # not in the file


class Bytes:
    """A token is a byte; no token ends a text."""

    end = None
    largest = 255

    def encode(self, text):
        return list(text.encode())

    def bytes_of(self, token):
        return bytes([token]) if token < 256 else b"\xff"


class World:
    """Greedy: at each place the longest token of the vocabulary.

    Raises:
        ValueError: the file cannot be read as a vocabulary; the message names the line.
    """

    end = END_OF_TEXT

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().split("\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise ValueError(f"{path}: cannot be read as a vocabulary: {problem}") from None
        self.texts = {}
        for n, line in enumerate(lines, 1):
            if line:
                token, text = _entry(path, n, line)
                self.texts[token] = text
        if not self.texts:
            raise ValueError(f"{path}: the vocabulary is empty")
        self.tokens = {text: token for token, text in self.texts.items()}
        self.largest = max(self.texts)
        lengths = {}
        for text in self.tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self.lengths = {byte: sorted(of_byte, reverse=True) for byte, of_byte in lengths.items()}

    def encode(self, text):
        data, place, tokens = text.encode(), 0, []
        while place < len(data):
            for length in self.lengths.get(data[place], ()):
                token = self.tokens.get(data[place : place + length])
                if token is not None:
                    break
            else:
                raise ValueError(
                    f"no token of the vocabulary starts the bytes {data[place : place + 8]!r}"
                )
            tokens.append(token)
            place += length
        return tokens

    def bytes_of(self, token):
        return self.texts.get(token, b"\xff")  # no text: shown as U+FFFD


def _entry(path, n, line):
    """(token, bytes) of line n."""
    try:
        number, rest = line.split(" ", 1)
        quoted, length = rest.rsplit(" ", 1)
        text = ast.literal_eval(quoted)
        text = text.encode() if isinstance(text, str) else text
        token = int(number)
        if not isinstance(text, bytes) or not text or len(text) != int(length) or token < 0:
            raise ValueError
    except (ValueError, SyntaxError):
        raise ValueError(
            f"{path}, line {n}: expected a number, a quoted string and its length in bytes, got"
            f" {line[:40]!r}"
        ) from None
    return token, text


def decoder():
    """bytes → text, piece by piece: a character comes when its last byte has come."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode
