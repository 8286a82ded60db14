package verbs_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// fail completes the first request of the send queue with status s.
func (q *loopQP) fail(s driver.WCStatus) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	q.send().add(driver.WC{WRID: q.sq[0].WRID, Status: s, QPN: q.qpn})
	q.sq = q.sq[1:]
}

// Every completion that a caller gets counts once, by its status; what only the
// core gets does not. The sums outlive queue pair and completion queue.
func TestCompletionsByStatus(t *testing.T) {
	for name, recv := range map[string]int{"receive queue": 16, "SRQ": withSRQ} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 16, MaxRecvWR: recv})
			signaled := verbs.SendWR{Flags: verbs.SendSignaled}
			r.send(signaled, verbs.SendWR{Opcode: verbs.OpRead}, signaled, signaled, signaled, signaled, signaled)
			recvs := make([]verbs.RecvWR, 3)
			var err error
			if r.srq != nil {
				_, err = r.srq.PostRecv(recvs)
			} else {
				_, err = r.qp.PostRecv(recvs)
			}
			require.NoError(t, err)

			r.lq.finish(0)
			r.lq.finish(0) // of the core
			r.lq.receive(driver.WC{})
			r.lq.fail(driver.StatusRetryExcErr)
			r.lq.fail(driver.StatusWRFlushErr)
			r.lq.fail(driver.StatusWRFlushErr)
			r.lq.receive(driver.WC{Status: driver.StatusLocLenErr})
			r.lq.receive(driver.WC{Status: driver.StatusWRFlushErr})
			r.lq.fail(driver.StatusGeneralErr)
			r.lq.fail(driver.WCStatus(driver.StatusCount + 77)) // of a later specification
			wcs := r.poll()
			require.Len(t, wcs, 9)

			var want [driver.StatusCount]uint64
			want[verbs.StatusSuccess] = 2
			want[verbs.StatusRetryExcErr] = 1
			want[verbs.StatusWRFlushErr] = 3
			want[verbs.StatusLocLenErr] = 1
			want[verbs.StatusGeneralErr] = 2
			check := func() {
				t.Helper()
				s := r.dev.Stats()
				require.Equal(t, want, s.ByStatus)
				require.EqualValues(t, 9, s.Completions)
				require.EqualValues(t, 7, s.SendsPosted)
				require.EqualValues(t, 3, s.RecvsPosted)
				require.EqualValues(t, 1, s.Swallowed)
			}
			check()
			require.Empty(t, r.poll())
			_, err = r.qp.Close()
			require.NoError(t, err)
			require.NoError(t, r.cq.Close())
			check()
		})
	}
}

// slowLoop is a loop whose registrations take their time.
type slowLoop struct {
	*loop
	take time.Duration
	err  error
}

type slowPD struct {
	driver.PD
	l *slowLoop
}

func (l *slowLoop) AllocPD() (driver.PD, error) {
	pd, err := l.loop.AllocPD()
	return slowPD{pd, l}, err
}

func (p slowPD) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	time.Sleep(p.l.take)
	if p.l.err != nil {
		return nil, p.l.err
	}
	return p.PD.RegMR(mem, acc)
}

// What the driver takes for a registration is counted, whether it succeeds or
// not; what does not get to the driver is not.
func TestRegisterLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &slowLoop{loop: newLoop(nil), take: 3 * time.Second}
		dev, err := verbs.NewDevice(l, verbs.Config{})
		require.NoError(t, err)
		pd, err := dev.AllocPD()
		require.NoError(t, err)
		require.Equal(t, verbs.Latencies{}, dev.Latencies())
		mr, err := pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
		require.NoError(t, err)
		_, err = pd.RegMR(nil, verbs.AccessLocalWrite)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		h := dev.Latencies().Register
		require.EqualValues(t, 1, h.Count)
		require.Equal(t, 3*time.Second, h.Sum)
		l.take, l.err = time.Second, errors.New("the test fails this")
		_, err = pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
		require.ErrorIs(t, err, l.err)
		h = dev.Latencies().Register
		require.EqualValues(t, 2, h.Count)
		require.Equal(t, 4*time.Second, h.Sum)
		require.NoError(t, mr.Deregister())
		require.NoError(t, pd.Close())
		require.NoError(t, dev.Close())
	})
}
