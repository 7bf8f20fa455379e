"""Files that are derived from others: the tests that hold them to these name what renews them."""

NAME = "derived"  # the marker, @pytest.mark.derived(what, command)


def noted(item):
    """Notes with a test what it holds to its source, for whoever gets its report."""
    if hasattr(item, "cell"):
        notebook = item.path.name
        marks = [(f"outputs of {notebook}", f"lessons run {notebook[:2]}")]
    else:
        marks = [mark.args for mark in item.iter_markers(NAME)]
    item.user_properties += [(NAME, mark) for mark in marks]


def renewals(failed):
    """A line for each derived file of which a test failed, with the command that renews it."""
    properties = [x for report in failed for x in report.user_properties]
    marks = dict.fromkeys(tuple(mark) for name, mark in properties if name == NAME)
    return [f"old, or wrong: {file}; renewed by: {command}" for file, command in marks]
