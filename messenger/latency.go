package messenger

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Latencies is how long things took since New, see Config.Latencies.
type Latencies struct {
	// SendQueue is from Send until the transport has taken the message: on a
	// stream the socket, or the batch of small messages that is written next
	// (Ceph: msgr_send_messages_queue_lat).
	SendQueue Histogram
	// SendAck is from Send until the peer of a lossless session has acknowledged
	// the message (compare Ceph's msgr_handle_ack_lat).
	SendAck Histogram
	// Dispatch is from when a message had arrived until a dispatcher had it: the
	// wait for earlier messages of the connection and for one of Config.Workers.
	Dispatch Histogram
	// Handle is how long dispatchers ran for one message (Ceph:
	// msgr_running_recv_time, msgr_running_fast_dispatch_time).
	Handle Histogram
	// Call is from Call until the reply.
	Call Histogram
}

// Histogram is a snapshot of durations. The bounds are the same for all.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [HistogramBuckets]uint64 // of durations below HistogramBound, each
}

const (
	// HistogramBuckets is how many buckets there are: two for each doubling, from
	// 1 us to 34 s, and one for what is longer.
	HistogramBuckets = 2*histogramOctaves + 2

	histogramOctaves = 25
	histogramShift   = 10 // the first bound is 1 << 10 ns
)

// HistogramBound is the least duration that is too long for bucket i, 0 for the
// last one, which has no bound.
func HistogramBound(i int) time.Duration {
	switch {
	case i == 0:
		return 1 << histogramShift
	case i == HistogramBuckets-1:
		return 0
	}
	octave, half := (i-1)/2, (i-1)%2
	base := time.Duration(1) << (histogramShift + octave)
	if half == 0 {
		return base + base/2
	}
	return 2 * base
}

// bucketOf is the bucket of a duration.
func bucketOf(d time.Duration) int {
	if d < 1<<histogramShift {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1 - histogramShift
	if octave >= histogramOctaves {
		return HistogramBuckets - 1
	}
	half := int(uint64(d)>>(histogramShift+octave-1)) & 1
	return 1 + 2*octave + half
}

// histogram is Histogram while it counts.
type histogram struct {
	sum     atomic.Int64
	buckets [HistogramBuckets]atomic.Uint64
}

func (h *histogram) observe(d time.Duration) {
	h.sum.Add(int64(max(d, 0)))
	h.buckets[bucketOf(d)].Add(1)
}

func (h *histogram) snapshot() (s Histogram) {
	for i := range s.Buckets {
		s.Buckets[i] = h.buckets[i].Load()
		s.Count += s.Buckets[i]
	}
	s.Sum = time.Duration(h.sum.Load())
	return s
}

// latencies is Latencies while it counts; nil: it does not. Its clock is the
// time since it was made.
type latencies struct {
	base                                       time.Time
	sendQueue, sendAck, dispatch, handle, call histogram
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
		s.SendQueue, s.SendAck, s.Dispatch = l.sendQueue.snapshot(), l.sendAck.snapshot(), l.dispatch.snapshot()
		s.Handle, s.Call = l.handle.snapshot(), l.call.snapshot()
	}
	return s
}
