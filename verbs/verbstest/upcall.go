package verbstest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// player is an end that answers messages wherever it learns of them: in
// upcalls, where the device has them, or in the goroutine that waits.
type player struct {
	*end
	rounds  uint64
	active  atomic.Bool // upcalls are taken
	upcalls atomic.Int64

	mu   sync.Mutex
	got  uint64 // messages
	err  error
	done chan struct{} // closed when all have come, or with err
}

var errEnough = errors.New("all rounds were played")

// upcall takes two announcements of three.
func (x *player) upcall(*verbs.CQ) bool {
	if !x.active.Load() || x.upcalls.Add(1)%3 == 0 || !x.mu.TryLock() {
		return false
	}
	defer x.mu.Unlock()
	x.serve()
	return true
}

// serve answers until there is nothing more to answer and the queue is armed.
// Called with mu held.
func (x *player) serve() {
	if x.err != nil {
		return
	}
	if x.err = x.play(); x.err != nil {
		close(x.done)
	}
}

func (x *player) play() error {
	for armed := false; ; {
		wc, ok, err := x.rq.poll()
		if err != nil {
			return err
		}
		if !ok {
			if armed {
				return nil
			}
			if err := x.rq.cq.ReqNotify(false); err != nil {
				return err
			}
			armed = true
			continue
		}
		armed = false
		if err := good(wc, x.got, driver.OpRecv); err != nil {
			return err
		}
		x.got++
		if x.got < x.rounds || x.name == "b" { // a has the first word and the last
			if err := x.serveBall(); err != nil {
				return err
			}
		}
		if x.got == x.rounds {
			return errEnough
		}
	}
}

// serveBall sends one message, with a receive posted for the answer.
func (x *player) serveBall() error {
	if _, err := x.qp.PostRecv([]verbs.RecvWR{{WRID: x.got}}); err != nil {
		return err
	}
	if _, err := x.qp.PostSend([]verbs.SendWR{signaled(x.got, driver.OpSend)}); err != nil {
		return err
	}
	// Polled to make room; which of them have come is a matter of time.
	for {
		wc, ok, err := x.sq.poll()
		if err != nil || !ok {
			return err
		}
		if wc.Status != driver.StatusSuccess {
			return fmt.Errorf("send: %v", wc.Status)
		}
	}
}

// wait is the goroutine that takes what upcalls leave. It ends with done.
func (x *player) wait() error {
	for {
		if _, err := x.rq.ch.Wait(x.ctx); err != nil {
			return err
		}
		x.mu.Lock()
		x.serve()
		err := x.err
		x.mu.Unlock()
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return fmt.Errorf("%s after %d messages: %w", x.name, x.got, err)
		}
	}
}

// upcalls plays ping-pong with announcements that go now to an upcall, now to
// Wait: one that is lost hangs it.
func upcalls(e *env) {
	rounds := uint64(e.short(3000))
	var players []*player
	can := false
	e.pair(pairOpts{with: func(x *end, c *verbs.QPConfig) {
		pl := &player{end: x, rounds: rounds, done: make(chan struct{})}
		ch, err := x.dev.CreateCompChannel()
		require.NoError(e, err)
		e.later(phaseChannel, ch.Close)
		can = ch.SetUpcall(pl.upcall)
		cq, err := x.dev.CreateCQ(verbs.CQConfig{Depth: 16, Channel: ch})
		require.NoError(e, err)
		e.later(phaseCQ, cq.Close)
		x.rq = &queue{e: e, cq: cq, ch: ch}
		c.RecvCQ = cq
		players = append(players, pl)
	}})
	require.Len(e, players, 2)
	var g errgroup.Group
	for _, x := range []*player{players[1], players[0]} { // b is ready first
		x.active.Store(true)
		x.mu.Lock()
		if x.name == "b" {
			_, err := x.qp.PostRecv([]verbs.RecvWR{{WRID: 0}})
			require.NoError(e, err)
		} else {
			require.NoError(e, x.serveBall())
		}
		x.serve() // arms
		x.mu.Unlock()
		g.Go(x.wait)
		g.Go(func() error {
			<-x.done
			x.rq.ch.Wake() // wait may be asleep
			return nil
		})
	}
	require.NoError(e, g.Wait())
	a, b := players[0].upcalls.Load(), players[1].upcalls.Load()
	if can {
		// b's queue was armed, and empty, when the first message came; a may have found
		// each answer before it had armed its own.
		require.Positive(e, b, "no upcall at b")
	} else {
		require.Zero(e, a+b)
	}
}
