package verbstest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// queue is a CQ with a channel of its own, read by one goroutine at a time.
type queue struct {
	e    *env
	cq   *verbs.CQ
	ch   *verbs.CompChannel
	buf  [16]verbs.WC
	pend []verbs.WC
}

func (e *env) queue(d *verbs.Device, depth int) *queue {
	e.Helper()
	ch, err := d.CreateCompChannel()
	require.NoError(e, err)
	e.later(phaseChannel, ch.Close)
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: depth, Channel: ch})
	require.NoError(e, err)
	e.later(phaseCQ, cq.Close)
	return &queue{e: e, cq: cq, ch: ch}
}

// wait returns the next completion, or an error when ctx is done first. It
// sleeps on the channel, never spins.
func (q *queue) wait(ctx context.Context) (verbs.WC, error) {
	for {
		if wc, ok, err := q.poll(); ok || err != nil {
			return wc, err
		}
		if err := q.cq.ReqNotify(false); err != nil {
			return verbs.WC{}, err
		}
		if wc, ok, err := q.poll(); ok || err != nil {
			return wc, err
		}
		if _, err := q.ch.Wait(ctx); err != nil {
			return verbs.WC{}, err
		}
	}
}

// poll returns a completion if there is one.
func (q *queue) poll() (verbs.WC, bool, error) {
	if len(q.pend) == 0 {
		n, err := q.cq.Poll(q.buf[:])
		if err != nil {
			return verbs.WC{}, false, err
		}
		q.pend = q.buf[:n]
	}
	if len(q.pend) == 0 {
		return verbs.WC{}, false, nil
	}
	wc := q.pend[0]
	q.pend = q.pend[1:]
	return wc, true, nil
}

// next returns the next completion and fails the subtest when none comes.
func (q *queue) next() verbs.WC {
	q.e.Helper()
	wc, err := q.wait(q.e.ctx)
	require.NoError(q.e, err, "no completion came")
	return wc
}

func (q *queue) take(n int) []verbs.WC {
	q.e.Helper()
	wcs := make([]verbs.WC, n)
	for i := range wcs {
		wcs[i] = q.next()
	}
	return wcs
}

// good is next, of the given request, with success.
func (q *queue) good(wrid uint64, op verbs.Opcode) verbs.WC {
	q.e.Helper()
	wc := q.next()
	require.NoError(q.e, good(wc, wrid, op))
	return wc
}

// spun is good without the channel: it leaves the CQ as it was armed, with no
// event on the way.
func (q *queue) spun(wrid uint64, op verbs.Opcode) verbs.WC {
	q.e.Helper()
	for {
		wc, ok, err := q.poll()
		require.NoError(q.e, err)
		if ok {
			require.NoError(q.e, good(wc, wrid, op))
			return wc
		}
		q.e.yield()
	}
}

func good(wc verbs.WC, wrid uint64, op verbs.Opcode) error {
	if wc.Status != driver.StatusSuccess || wc.WRID != wrid || wc.Opcode != op {
		return fmt.Errorf("completion of %d is %v, %v; want %d, %v, SUCCESS", wc.WRID, wc.Opcode, wc.Status, wrid, op)
	}
	return nil
}

// empty asserts that there is no completion.
func (q *queue) empty() {
	q.e.Helper()
	wc, ok, err := q.poll()
	require.NoError(q.e, err)
	require.False(q.e, ok, "a completion too many: %+v", wc)
}

// quiet asserts that no CQ event is queued on the channel. It can not wait for
// nothing; it wakes itself.
func (q *queue) quiet() {
	q.e.Helper()
	q.ch.Wake()
	cq, err := q.ch.Wait(q.e.ctx)
	require.NoError(q.e, err)
	require.Nil(q.e, cq, "an event on the channel that nothing explains")
}

// want checks a condition for goroutines, which must not end the test.
func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
