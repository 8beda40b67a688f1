"""Who is fed when, on virtual time: texts follow from requests alone, nobody waits for long, and nobody's failure is
another one's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.llm.serving.simulated import CALL, TOKEN, Pieces, Served, Windows, alone, prompt_of, wanted_of
from tilewright.llm.sequences import Part
from tilewright.llm.serving.requests import AnswerRequest, BusyError, Limits
from tilewright.llm.serving.scheduler import Scheduler
from tilewright.runtime.errors import ExecutionError, InputError, OptionError


def test_an_answer_is_what_its_request_gets_alone() -> None:
    served = Served()
    client = served.ask(prompt_of(37), wanted_of(12, seed=3))
    served.run()
    draft = alone(Pieces(704, 400), prompt_of(37), wanted_of(12, seed=3))
    assert client.text() == draft.text and client.reason() == "length"
    assert client.tokens() == [drawn.token for drawn in draft.drawn]
    assert served.sequences.calls[:3] == [[16], [16], [5]] and len(client.told) == 12


@pytest.mark.fresh_seeds(6)
def test_texts_do_not_depend_on_what_else_is_computed(fresh_seed: int) -> None:
    """Requests with and without common begins, in any order and at any time, some of them cancelled, with little memory
    and with much: each text is that of the request alone, and in the end nothing is open but what is kept."""
    rng = random.Random(fresh_seed)
    limits = {"parallel": rng.randint(1, 5), "kept": rng.randint(0, 3), "piece": rng.choice([1, 4, 16]),
              "positions": rng.choice([None, 130, 260]), "waiting": 99}  # fmt: skip
    served = Served(decoder=rng.choice([Pieces, Windows])(704, 120), **limits)
    asked = []
    for n in range(14):
        begin = prompt_of(rng.choice([0, 20, 48, 70]), rng.randrange(2))
        prompt = begin + prompt_of(rng.randint(1, 30), rng.randrange(4))
        wanted = tuple(wanted_of(rng.randint(1, 40), seed=n + 100 * k) for k in range(rng.choice([1, 1, 1, 3])))
        client = served.ask(prompt, *wanted, client=rng.choice("abc"))
        asked.append((client, prompt, wanted, rng.random() < 0.2))
        served.run(rng.randrange(12))
        for other, *_, cancelled in asked:
            if cancelled and rng.random() < 0.3 and other.ticket is not None:
                served.scheduler.cancel(other.ticket)
    served.run()
    decoder = Pieces(704, 120)
    for client, prompt, wanted, cancelled in asked:
        assert client.error is None
        for k, one in enumerate(wanted):
            draft = alone(decoder, prompt, one, served.limits.piece)
            expected = [drawn.token for drawn in draft.drawn]
            found = client.tokens(k)
            assert found == (expected[: len(found)] if cancelled else expected)
            assert cancelled or (client.text(k), client.reason(k)) == (draft.text, draft.reason)
    assert served.sequences.live <= served.limits.kept
    assert served.sequences.most <= (limits["positions"] or 10**9) and served.scheduler.running == 0


@pytest.mark.fresh_seeds(3)
def test_calls_that_fail_change_no_byte_of_what_does_not(fresh_seed: int) -> None:
    """Calls fail by chance, some half way, and with some sequences always: a request has its text, or an error."""
    rng = random.Random(fresh_seed)
    served = Served(context=120, parallel=rng.randint(2, 5), kept=rng.randint(0, 3), waiting=99)
    begin = served.sequences.open()
    served.sequences.close(begin)
    cursed = {begin + 1 + n for n in range(200) if rng.random() < 0.1}

    def fails(parts: Sequence[Part]) -> None:
        if any(handle in cursed for handle, _ in parts):
            raise ExecutionError("one of these is too much")
        if len(parts) > 1 and rng.random() < 0.1:
            lost = rng.choice(parts)[0]
            if rng.random() < 0.5:
                del served.sequences._open[lost]
            raise rng.choice([ExecutionError("half way"), MemoryError()])

    served.sequences.broken = fails
    asked = []
    for n in range(14):
        prompt = prompt_of(rng.choice([0, 48]), rng.randrange(2)) + prompt_of(rng.randint(1, 30), n)
        wanted = tuple(wanted_of(rng.randint(1, 40), seed=n + 100 * k) for k in range(rng.choice([1, 1, 3])))
        asked.append((served.ask(prompt, *wanted), prompt, wanted))
        served.run(rng.randrange(12))
    served.run()
    failed = [client for client, *_ in asked if client.error is not None]
    assert all(isinstance(client.error, ExecutionError) for client in failed) and len(failed) < len(asked)
    for client, prompt, wanted in asked:
        for k, one in enumerate(wanted):
            draft = alone(Pieces(704, 120), prompt, one)
            found, expected = client.tokens(k), [drawn.token for drawn in draft.drawn]
            assert found == (expected if client.error is None else expected[: len(found)])
    assert served.sequences.live <= served.limits.kept


def test_a_long_prompt_delays_nobody_by_more_than_a_piece() -> None:
    served = Served()
    quick = [served.ask(prompt_of(5, n), wanted_of(60)) for n in range(2)]
    served.run(4)
    slow = served.ask(prompt_of(330, 9), wanted_of(4))
    served.run()
    for client in quick:
        between = np.diff(client.times)
        assert between.max() <= CALL + TOKEN * (16 + 2) + 1e-9
    assert slow.first < max(quick[0].times), "nor do they keep it from being read"


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one() -> None:
    served = Served()
    slow = served.ask(prompt_of(390, 1), wanted_of(2), client="a")
    served.run(3)
    begun = served.sequences.now
    other = served.ask(prompt_of(10, 2), wanted_of(2), client="b")
    same = served.ask(prompt_of(10, 3), wanted_of(2), client="a")
    served.run()
    assert other.first - begun <= 2 * (CALL + TOKEN * 17)
    assert same.first < slow.first and same.first - begun <= 4 * (CALL + TOKEN * 18)


def test_clients_share_evenly_however_much_one_asks_for() -> None:
    """Ten requests of one client, then one of another: it is the next to begin."""
    served = Served(parallel=1)
    many = [served.ask(prompt_of(20, n), wanted_of(5), client="a") for n in range(10)]
    served.run(1)
    one = served.ask(prompt_of(20, 99), wanted_of(5), client="b")
    served.run()
    assert many[0].first < one.first < many[1].first


def test_who_stays_away_saves_nothing_up() -> None:
    served = Served(parallel=1)
    for n in range(6):
        served.ask(prompt_of(20, n), wanted_of(5), client="a")
    served.run()
    late = [served.ask(prompt_of(20, 50 + n), wanted_of(5), client="b") for n in range(4)]
    again = [served.ask(prompt_of(20, 80 + n), wanted_of(5), client="a") for n in range(4)]
    served.run()
    begun = sorted([(c.first, "b") for c in late] + [(c.first, "a") for c in again])
    assert [name for _, name in begun] == ["b", "a"] * 4


def test_short_prompts_are_read_in_one_step() -> None:
    served = Served()
    for n in range(4):
        served.ask(prompt_of(4, n), wanted_of(1))
    served.run()
    assert served.sequences.calls == [[4, 4, 4, 4]]


# shared begins


def test_what_was_read_for_one_is_not_read_again_for_another() -> None:
    served = Served()
    begin = prompt_of(64, 1)
    first = served.ask([*begin, *prompt_of(9, 2)], wanted_of(3))
    served.run()
    read = served.scheduler.counts.read
    second = served.ask([*begin, *prompt_of(9, 3)], wanted_of(3))
    served.run()
    assert served.scheduler.counts.read - read == 9
    assert (first.told[0][1].reused, second.told[0][1].reused) == (0, 64)


def test_what_is_being_read_for_one_is_not_read_for_another_at_the_same_time() -> None:
    served = Served()
    begin = prompt_of(64, 1)
    clients = [served.ask([*begin, *prompt_of(9, 2 + n)], wanted_of(3), client=str(n)) for n in range(4)]
    served.run()
    assert served.scheduler.counts.read == 64 + 4 * 9
    assert all(client.text() for client in clients)


def test_a_prompt_that_is_known_as_a_whole_is_fed_from_its_last_piece() -> None:
    served = Served()
    for _ in range(2):
        served.ask(prompt_of(32, 1), wanted_of(3))
        served.run()
    assert served.scheduler.counts.read == 32 + 16


def test_few_begins_are_kept_and_the_latest_ones() -> None:
    served = Served(kept=2)
    prompts = [prompt_of(33, n) for n in range(3)]
    for n in (0, 1, 0, 2):  # 1 is used longest ago when 2 comes
        served.ask(prompts[n], wanted_of(2))
        served.run()
    assert served.sequences.live == 2
    read = served.scheduler.counts.read
    for n in (0, 2):
        served.ask(prompts[n], wanted_of(2))
        served.run()
    assert served.scheduler.counts.read - read == 2
    served.ask(prompts[1], wanted_of(2))
    served.run()
    assert served.scheduler.counts.read - read == 2 + 33


def test_a_longer_begin_takes_the_place_of_a_shorter_one() -> None:
    served = Served()
    prompt = prompt_of(100, 1)
    for size in (20, 40, 100, 60):
        served.ask(prompt[:size], wanted_of(1))
        served.run()
    assert served.sequences.live == 1 and served.sequences.positions == 96


def test_nothing_is_shared_where_the_model_cannot_rewind() -> None:
    class Sums(Pieces):
        def rewind(self, length: int) -> None:
            if length not in (0, self.length):
                raise OptionError("it keeps sums of its past")
            super().rewind(length)

    served = Served(decoder=Sums(704, 400))
    clients = [served.ask([*prompt_of(64, 1), n], wanted_of(3, seed=7)) for n in (9, 10, 9)]
    served.run()
    again = served.ask([*prompt_of(64, 1), 9], wanted_of(3, seed=7))
    served.run()
    assert again.text() == clients[0].text() == clients[2].text()
    assert served.sequences.live == 0


def test_a_begin_that_layers_with_a_window_have_forgotten_is_read_again() -> None:
    served = Served(decoder=Windows(704, 400))
    begin = prompt_of(64, 1)
    prompts = [[*begin, *prompt_of(150, 2)], [*begin, *prompt_of(100, 3)], [*begin, 5]]
    first = served.ask(prompts[0], wanted_of(30))
    served.run(16)
    clients = [first]
    for prompt in prompts[1:]:  # beside it, and behind its end
        clients.append(served.ask(prompt, wanted_of(6)))
        served.run()
    for client, prompt, count in zip(clients, prompts, (30, 6, 6), strict=True):
        assert client.error is None
        assert client.text() == alone(Pieces(704, 400), prompt, wanted_of(count)).text
    near = served.ask([*prompts[0][:200], 7], wanted_of(2))
    served.run()
    assert near.told[0][1].reused == 192, "what it can go back to is shared"
    for n in range(6):  # answers beyond what can be forgotten: begins are kept when they are read, from the first on
        prompt = prompt_of(150, 10 + n)
        for last in (prompt, [*prompt[:128], 7, n]):
            client = served.ask(last, wanted_of(60))
            served.run()
            assert client.text() == alone(Pieces(704, 400), last, wanted_of(60)).text
        assert client.told[0][1].reused == (0 if n == 0 else 128)
    assert served.sequences.live <= served.limits.kept


# several answers


def test_several_answers_read_their_prompt_once() -> None:
    served = Served()
    client = served.ask(prompt_of(37), *(wanted_of(6, seed=n) for n in range(3)))
    served.run()
    assert served.scheduler.counts.read == 37
    assert len({client.text(n) for n in range(3)}) == 3
    for n in range(3):
        assert client.text(n) == alone(Pieces(704, 400), prompt_of(37), wanted_of(6, seed=n)).text


def test_more_answers_than_are_computed_at_once_follow_each_other() -> None:
    served = Served(parallel=2)
    client = served.ask(prompt_of(37), *(wanted_of(6, seed=n) for n in range(5)))
    served.run()
    for n in range(5):
        assert client.text(n) == alone(Pieces(704, 400), prompt_of(37), wanted_of(6, seed=n)).text
    assert served.sequences.live == 1


# what goes wrong


def test_a_request_that_fails_fails_alone() -> None:
    served = Served(kept=0)
    good = [served.ask(prompt_of(20, n), wanted_of(12, seed=n)) for n in range(3)]
    bad = served.ask(prompt_of(20, 9), wanted_of(12))
    served.run(3)
    broken = max(served.sequences._open)

    def fails(parts: Sequence[Part]) -> None:
        if any(handle == broken for handle, _ in parts):
            raise ExecutionError("this one is too much")

    served.sequences.broken = fails
    served.run()
    assert isinstance(bad.error, ExecutionError)
    for n, client in enumerate(good):
        assert client.error is None
        assert client.text() == alone(Pieces(704, 400), prompt_of(20, n), wanted_of(12, seed=n)).text
    assert served.sequences.live == 0


def test_a_sequence_that_a_failed_call_lost_is_fed_again() -> None:
    """As decoders that cannot rewind lose theirs when a call fails half way."""
    served = Served(kept=0)
    good = [served.ask(prompt_of(20, n), wanted_of(12, seed=n)) for n in range(3)]
    served.run(6)
    lost = min(served.sequences._open)

    def fails(parts: Sequence[Part]) -> None:
        served.sequences.broken = lambda parts: None
        del served.sequences._open[lost]
        raise ExecutionError("half way")

    served.sequences.broken = fails
    served.run()
    for n, client in enumerate(good):
        assert client.text() == alone(Pieces(704, 400), prompt_of(20, n), wanted_of(12, seed=n)).text
    assert served.scheduler.counts.given_way == 1 and served.sequences.live == 0


def test_where_memory_ends_kept_begins_give_theirs_back() -> None:
    served = Served()
    served.ask(prompt_of(40, 1), wanted_of(2))
    served.run()
    assert served.sequences.live == 1

    def fails(parts: Sequence[Part]) -> None:
        if served.sequences.live > 1:
            raise MemoryError

    served.sequences.broken = fails
    client = served.ask(prompt_of(40, 2), wanted_of(2))
    served.run()
    assert client.error is None and client.reason() == "length"
    served.sequences.broken = lambda parts: (_ for _ in ()).throw(MemoryError())
    other = served.ask(prompt_of(40, 3), wanted_of(2))
    served.run()
    assert isinstance(other.error, MemoryError)


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    class Wrong(Pieces):
        def feed(self, tokens: Any) -> np.ndarray:
            logits = super().feed(tokens)
            return logits * np.nan if 3 in self.past[:1] else logits

    served = Served(decoder=Wrong(704, 400))
    bad = served.ask([3, *prompt_of(20)], wanted_of(4), wanted_of(4))
    good = served.ask(prompt_of(20), wanted_of(4))
    served.run()
    assert isinstance(bad.error, ExecutionError) and not bad.told
    assert good.error is None and good.reason() == "length"


def test_a_constraint_that_leaves_no_token_fails_its_request_alone() -> None:
    class Never:
        def allowed(self) -> np.ndarray:
            return np.zeros(704, bool)

        def accept(self, token: int) -> None: ...

    served = Served()
    bad = served.ask(prompt_of(20), wanted_of(4, constraint=Never))
    good = served.ask(prompt_of(20), wanted_of(4))
    served.run()
    assert isinstance(bad.error, InputError) and "no token may come next" in str(bad.error)
    assert good.reason() == "length"


def test_cancelled_requests_cost_nothing_more() -> None:
    served = Served(parallel=1)
    reads, writes, waits = (served.ask(prompt_of(200, n), wanted_of(90), client=str(n)) for n in range(3))
    served.run(2)
    for client in (reads, waits):
        assert client.ticket is not None
        served.scheduler.cancel(client.ticket)
    served.run(16)
    told = len(writes.told)
    assert told and not reads.told and not waits.told
    assert writes.ticket is not None
    served.scheduler.cancel(writes.ticket)
    calls = len(served.sequences.calls)
    served.run()
    assert len(served.sequences.calls) == calls and len(writes.told) == told
    served.scheduler.cancel(writes.ticket)  # again: nothing
    # what was read of them is kept
    again = served.ask(prompt_of(200, 0), wanted_of(1))
    served.run()
    assert again.told[0][1].reused == 32


# bounds


@pytest.mark.parametrize("size", [0, 401])
def test_prompts_without_room_are_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"the prompt has {size} tokens, but there is room for 1 to 400"):
        Served().ask(prompt_of(size))


def test_an_answer_ends_where_the_context_does() -> None:
    served = Served(context=50, positions=40)
    full, longer = served.ask(prompt_of(40), wanted_of(9)), served.ask(prompt_of(38), wanted_of(None))
    served.run()
    assert (len(full.tokens()), full.reason()) == (1, "context")
    assert (len(longer.tokens()), longer.reason()) == (3, "context")


def test_answers_of_no_tokens_are_over_at_once() -> None:
    served = Served()
    client = served.ask(prompt_of(9), wanted_of(0))
    assert client.reason() == "length" and not served.scheduler.busy


def test_a_full_queue_refuses_and_says_so() -> None:
    served = Served(parallel=1, waiting=2)
    for n in range(3):
        served.ask(prompt_of(9, n), client="a")
    with pytest.raises(BusyError, match="too much is asked for at once"):
        served.ask(prompt_of(9), client="a")
    with pytest.raises(BusyError):
        served.ask(prompt_of(9), *[wanted_of()] * 3, client="b")
    with pytest.raises(InputError, match="4 answers are wanted, but there is room for 3"):
        served.ask(prompt_of(9), *[wanted_of()] * 4, client="b")
    served.run()
    served.ask(prompt_of(9), client="a")


def test_a_client_that_fills_the_queue_gives_way_to_others() -> None:
    served = Served(parallel=1, waiting=4)
    many = [served.ask(prompt_of(9, n), client="a") for n in range(5)]
    served.run(1)
    others = [served.ask(prompt_of(9, n), client="b") for n in range(2)]
    assert [isinstance(client.error, BusyError) for client in many] == [False, False, False, True, True]
    with pytest.raises(BusyError):
        served.ask(prompt_of(9, n := 3), client="b")  # both have as much as the other
    served.run()
    assert all(client.reason() == "length" for client in (*many[:3], *others)), n


def test_who_comes_last_gives_way_where_memory_is_short() -> None:
    served = Served(parallel=3, positions=400, kept=1)
    clients = [served.ask(prompt_of(60, n), wanted_of(120, seed=n)) for n in range(3)]
    served.run()
    assert served.scheduler.counts.given_way > 0 and served.sequences.most <= 400
    for n, client in enumerate(clients):
        draft = alone(Pieces(704, 400), prompt_of(60, n), wanted_of(120, seed=n))
        assert client.tokens() == [drawn.token for drawn in draft.drawn]
    assert max(clients[0].times) < max(clients[1].times), "the first one went on"


def test_the_end_is_told_to_all() -> None:
    served = Served(parallel=1)
    clients = [served.ask(prompt_of(30, n), wanted_of(), wanted_of()) for n in range(3)]
    served.run(3)
    served.scheduler.stop(InputError("over"))
    assert all(isinstance(client.error, InputError) for client in clients)
    assert not served.scheduler.busy and served.sequences.live <= 1


@pytest.mark.parametrize("wrong", [{"parallel": 0}, {"piece": 0}, {"waiting": -1}, {"kept": 1.5}, {"positions": 0},
                                   {"parallel": True}, {"piece": None}])  # fmt: skip
def test_limits_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Limits(**wrong)


def test_a_model_with_too_few_sequences_is_refused() -> None:
    served = Served()
    with pytest.raises(OptionError, match="12 sequences are wanted, but the model has 8"):
        from tests.llm.serving.simulated import WORDS, Timed

        Scheduler(Timed(Pieces(704, 40), 8), WORDS, served.limits)


def test_biases_for_tokens_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="names the token 9999"):
        Served().ask(prompt_of(9), wanted_of(logit_bias={9999: 1.0}))
    assert AnswerRequest(np.array([1]), ()).client == ""
