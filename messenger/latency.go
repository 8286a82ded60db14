package messenger

import (
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/histogram"
)

// Latencies is how long things took since New, see Config.Latencies.
type Latencies struct {
	// SendQueue is from Send until the transport has taken the message: on a
	// stream the socket, or the batch of small messages that is written next
	// (Ceph: msgr_send_messages_queue_lat).
	SendQueue Histogram
	// Send is how long sending took: the goroutine that sends a queue from its
	// first message to its last, or one Send that hands its message to the
	// transport itself. Encoding, sealing, writing, and waiting for the peer to
	// take more are in it (Ceph: msgr_running_send_time).
	Send Histogram
	// SendAck is from Send until the peer of a lossless session has acknowledged
	// the message (compare Ceph's msgr_handle_ack_lat).
	SendAck Histogram
	// Receive is from when the first bytes of a message were there until it had
	// arrived and was numbered: the rest of it, and the wait for throttles and
	// memory before that. On RDMA it is decoding alone: the payload is there first,
	// see conn.Latencies (Ceph: msgr_running_recv_time).
	Receive Histogram
	// FastDispatch is how long FastDispatch ran for a message that it consumed
	// (Ceph: msgr_running_fast_dispatch_time).
	FastDispatch Histogram
	// Dispatch is from when a message that it did not consume had arrived until a
	// dispatcher had it: the wait for earlier messages of the connection and for
	// one of Config.Workers.
	Dispatch Histogram
	// Handle is how long Dispatch ran for one message.
	Handle Histogram
	// Call is from Call until the reply.
	Call Histogram
}

// Running is how long the messenger has worked: Send, Receive and FastDispatch
// (Ceph: msgr_running_total_time). What runs at the same time counts each.
func (l *Latencies) Running() time.Duration { return l.Send.Sum + l.Receive.Sum + l.FastDispatch.Sum }

// Histogram is a snapshot of durations. The bounds are the same for all.
type Histogram = histogram.Histogram

// HistogramBuckets is how many buckets there are: two for each doubling, from
// 1 us to 34 s, and one for what is longer.
const HistogramBuckets = histogram.Buckets

// HistogramBound is the least duration that is too long for bucket i, 0 for the
// last one, which has no bound.
func HistogramBound(i int) time.Duration { return histogram.Bound(i) }

// latencies is Latencies while it counts; nil: it does not. Its clock is the
// time since it was made.
type latencies struct {
	base                            time.Time
	sendQueue, send, sendAck        histogram.Counter
	receive, fast, dispatch, handle histogram.Counter
	call                            histogram.Counter
}

// now is the clock, never 0; of nil it is 0.
func (l *latencies) now() time.Duration {
	if l == nil {
		return 0
	}
	return time.Since(l.base) + 1
}

// Latencies returns the histograms; all are empty without Config.Latencies.
func (m *Messenger) Latencies() (s Latencies) {
	if l := m.lat; l != nil {
		s.SendQueue, s.Send, s.SendAck = l.sendQueue.Snapshot(), l.send.Snapshot(), l.sendAck.Snapshot()
		s.Receive, s.FastDispatch = l.receive.Snapshot(), l.fast.Snapshot()
		s.Dispatch, s.Handle, s.Call = l.dispatch.Snapshot(), l.handle.Snapshot(), l.call.Snapshot()
	}
	return s
}
