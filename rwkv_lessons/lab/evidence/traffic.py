"""What a kernel asks of memory per token, counted while it runs on the CPU."""

import dataclasses
from collections.abc import Callable

FEW, MANY = 6, 70  # tokens of the two launches whose difference is counted: 64, whole batches of 32
SHARED_BYTES = 48 * 1024  # of a block, for arrays whose size the kernel declares
SLACK = 0.05  # requests a token: what a chunk of 64 tokens costs once
# Above that, what is told and let pass: one request every four tokens, or one of twenty. A request
# too many in each token is more. Of conflicts, what filling shared memory may have of them: a loop
# over a state's 64 rows has 64 at least.
TOLERATED, SHARE = 0.25, 0.05
TOLERATED_CONFLICTS = 4
FILLING = 64  # conflicts a warp and launch: filling tables has some, clearing a state's rows 2,000


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a kernel may ask for per token.

    Args:
        text: what is counted, "loads".
        count: of a Trace, in all.
        shares: of a Trace, {Row: its part of the count}.
        limit: per token, and per `unit`.
        unit: "warp" or "thread".
        least: whether the limit is the least and not the most.
        ever: whether one in a whole launch counts, where none are allowed.
        tolerated: how far above the limit a count is named only.
        once: the most per unit outside the loop over tokens, or None for any number.
        hint: said of what is too little.
    """

    text: str
    count: Callable
    shares: Callable
    limit: float
    unit: str = "warp"
    least: bool = False
    ever: bool = False
    tolerated: float = 0
    once: float | None = None
    hint: str = ""

    def per_token(self, few, many, tokens=(FEW, MANY)):
        """The count per token and unit, from launches of so many `tokens`."""
        threads = many.threads_per_block * len(many.blocks)
        units = few.warps if self.unit == "warp" else threads
        return (self.count(many) - self.count(few)) / (tokens[1] - tokens[0]) / units

    def outside(self, few, many, tokens=(FEW, MANY)):
        """The count per warp that does not grow with the tokens."""
        return self.count(few) / few.warps - tokens[0] * self.per_token(few, many, tokens)

    def excess(self, few, many, tokens=(FEW, MANY)):
        """None, or what is too much or too little, in lines: how much, then where."""
        per_token = self.per_token(few, many, tokens)
        if self.least:
            if per_token >= self.limit:
                return None
            hint = (f"hint: {self.hint}",) if self.hint else ()
            return (f"{self.text_of(per_token)}, want at least {self.limit:g}", *hint)
        some = self.ever and self.limit == 0 and self.count(many) > 0
        if per_token <= self.limit + max(SLACK, self.tolerated) and not some:
            return self._before_the_loop(few, many, tokens)
        lines = [
            f"{self.text_of(per_token)}, want at most {self.limit:g}: "
            f"{per_token - self.limit:.4g} too many"
        ]
        shares = sorted(self.shares(many).items(), key=lambda share: -share[1])
        for row, count in shares[:6]:
            count /= tokens[1] * (many.warps if self.unit == "warp" else 1)
            lines.append(f"{row.array}: {count:.3g}, {row.place}")
        return tuple(lines)

    def _before_the_loop(self, few, many, tokens):
        """None, or what is too much of what a launch does once."""
        outside = self.outside(few, many, tokens)
        if self.once is None or outside <= self.once:
            return None
        row, count = max(self.shares(few).items(), key=lambda share: share[1])
        text = f"{self.counted(outside)} per {self.unit} before or after the loop over tokens"
        return f"{text}, want at most {self.once:g}", f"{row.array}: {count:,}, {row.place}"

    def warning(self, few, many, tokens=(FEW, MANY)):
        """What to say of a count that is only just not too much; or ""."""
        per_token = self.per_token(few, many, tokens)
        if self.least or per_token <= self.limit + SLACK:
            return ""
        return f"{self.text_of(per_token)}: {self.limit:g} or fewer would be better"

    def text_of(self, amount):
        return f"{self.counted(amount)} per {self.unit} and token"

    def counted(self, amount):
        """ "1 load", "3 loads"."""
        number = f"{amount:.3g}"
        return f"{number} {self.text.removesuffix('s') if number == '1' else self.text}"


def _requests(text, limit, least=False, ever=False, hint="", **which):
    def fitting(trace):
        return {
            row: row.requests - trace.reloads.get(row, 0)
            for row in trace.rows
            if all(getattr(row, name) == value for name, value in which.items())
        }

    total = lambda t: sum(fitting(t).values())  # noqa: E731
    tolerated = 0 if ever else max(TOLERATED, SHARE * limit)
    return Budget(
        text, total, fitting, limit, least=least, ever=ever, tolerated=tolerated, hint=hint
    )


def loads(per_token: float):
    """At most so many load requests to global memory, what a compiler merges counted once."""
    return _requests("loads", per_token, space="global", op="load")


def few_sectors(limit: float, hint: str):
    """What to say, in lines, of a trace whose global loads touch more sectors each, on average."""

    def remark(trace):
        rows = [row for row in trace.rows if (row.space, row.op) == ("global", "load")]
        each = sum(row.sectors for row in rows) / max(1, sum(row.requests for row in rows))
        if each <= 1.2 * limit:  # what a learner loads more often may be scattered a little
            return ()
        message = f"a load touches {each:.2g} sectors on average, {limit:.2g} would do"
        return message, f"hint: {hint}"

    return remark


def stores(per_token: float):
    """At most so many store requests to global memory."""
    return _requests("stores", per_token, space="global", op="store")


def atomics(per_token: float):
    """At most so many atomic requests, on any memory."""
    return _requests("atomics", per_token, ever=True, op="atomic")


def some_atomics():
    """At least one atomic per token."""
    hint = "This rung adds each product with cuda.atomic.add. Doing without is the next one."
    return _requests("atomics", 1, least=True, op="atomic", hint=hint)


def bank_conflicts(per_token: float = 0):
    """Passes over shared memory beyond those that a conflict-free layout needs.

    Those in the loop over tokens are counted per token, those outside it at most `FILLING`.
    """

    def conflicts(trace):
        return {row: row.conflicts for row in trace.rows if row.conflicts}

    count = lambda t: t.bank_conflicts  # noqa: E731
    return Budget(
        "bank conflicts", count, conflicts, per_token, tolerated=TOLERATED_CONFLICTS, once=FILLING
    )


def exponentials(per_token: float):
    """Calls of exp, exp2 and the like."""
    return Budget(
        "exps", lambda t: t.exponentials, lambda t: {}, per_token, "thread", tolerated=TOLERATED
    )


def kept_in_shared(numbers: float):
    """At least so many float32 numbers written to shared memory, by each thread."""

    def written(trace):
        return trace.bytes("shared", "store") / 4

    text = "numbers written to shared memory"
    return Budget(text, written, lambda t: {}, numbers, "thread", least=True)
