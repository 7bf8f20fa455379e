"""CUDA graphs without a GPU: nothing runs in a capture, a replay reads the same memory again."""

import pytest
import torch

from warplens.graphs import CaptureFault, Graphs


def captured(f, *inputs):
    cuda = Graphs()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results = f(*inputs)
    return cuda, graph, results


def test_nothing_is_computed_in_a_capture():
    x = torch.ones(3)
    _, graph, y = captured(lambda x: (x + 1).mul_(2), x)
    assert y.isnan().all() and torch.equal(x, torch.ones(3))
    graph.replay()
    assert torch.equal(y, torch.full((3,), 4.0))


def test_a_replay_reads_what_its_memory_holds_now():
    x, weights = torch.ones(2, 3), torch.arange(12.0).view(3, 4)
    _, graph, y = captured(lambda x: (x @ weights).relu()[:, 1:], x)
    x.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 2]]))
    graph.replay()
    assert torch.equal(y, (x @ weights).relu()[:, 1:])


def test_a_loop_that_writes_into_parts_of_a_tensor_is_replayed_in_order():
    def sums(x):
        o, total = torch.empty_like(x), torch.zeros(4)
        for t in range(5):
            total += x[t]
            o[t] = total
        return o

    x = torch.randn(5, 4)
    _, graph, o = captured(sums, x)
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(o, x.cumsum(0))
    assert graph.replays == 2


def test_what_a_capture_changes_in_place_is_not_changed_yet():
    state = torch.zeros(3)
    _, graph, _ = captured(lambda s: s.add_(1), state)
    assert torch.equal(state, torch.zeros(3))
    graph.replay()
    graph.replay()
    assert torch.equal(state, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "f", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x if x[0] else x]
)
def test_the_host_cannot_ask_for_a_number(f):
    with pytest.raises(CaptureFault, match="inside a capture"):
        captured(f, torch.ones(3))


def test_what_cuda_forbids_is_a_fault():
    cuda = Graphs()
    graph = cuda.CUDAGraph()
    with pytest.raises(CaptureFault, match="not captured"):
        graph.replay()
    with pytest.raises(CaptureFault, match="takes a CUDAGraph"), cuda.graph(cuda):
        pass
    with pytest.raises(CaptureFault, match="nothing runs"), cuda.graph(graph):
        cuda.synchronize()
    with pytest.raises(CaptureFault, match="inside a capture"), cuda.graph(cuda.CUDAGraph()):
        with cuda.graph(graph):
            pass
    assert not cuda.capturing and not cuda.is_current_stream_capturing()


def test_streams_are_there_to_warm_up_on():
    cuda = Graphs()
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        x = torch.ones(2) + 1
    cuda.current_stream().wait_stream(stream)
    assert torch.equal(x, torch.full((2,), 2.0))
