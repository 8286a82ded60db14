package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

var errInjected = errors.New("injected")

// openFaulty opens a device whose driver calls fail by script.
func openFaulty(t testing.TB, s *verbstest.Script) *verbs.Device {
	return env.Core(t, verbstest.NewFaulty(env.OpenDriver(t), s))
}

// side is an endpoint on a faulty device: everything may fail.
type side struct {
	dev      *verbs.Device
	a        *buffer.Arena
	e        *Endpoint
	conns    chan *Conn
	messages chan string
	faults   chan error
}

func newSide(t *testing.T, s *verbstest.Script, cfg Config) (*side, error) {
	d := &side{dev: openFaulty(t, s), conns: make(chan *Conn, 10), messages: make(chan string, 100), faults: make(chan error, 10)}
	var err error
	d.a, err = buffer.New(buffer.Config{Budget: 16 << 20, NoHugePages: true})
	require.NoError(t, err)
	cfg.Credits, cfg.RecvSize = 16, 16<<10
	cfg.OnAccept = func(c *Conn) bool { d.conns <- c; return true }
	cfg.OnFault = func(_ *Conn, err error) { d.faults <- err }
	cfg.OnMessage = func(_ *Conn, m Message) {
		d.messages <- string(m.Head)
		if m.Payload != nil {
			m.Payload.Release()
		}
	}
	d.e, err = NewEndpoint(d.dev, d.a, cfg)
	return d, err
}

// end takes the side down, whatever happened to it, and checks that nothing is
// left. One call of the device may fail: then the next Close does it.
func (d *side) end(t *testing.T) {
	if d.e != nil {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		if err := d.e.Shutdown(ctx); err != nil {
			require.ErrorIs(t, err, errInjected)
			require.NoError(t, d.e.Close())
		}
		require.Zero(t, d.e.Stats().Conns)
	}
	acc := d.a.Account()
	require.Zero(t, acc.Posted)
	require.Zero(t, acc.Held, "%v", d.a.Holders())
	require.Zero(t, d.a.Stats().Grants)
	require.Empty(t, d.dev.Resources())
	if err := d.dev.Close(); err != nil {
		require.ErrorIs(t, err, errInjected)
		require.NoError(t, d.dev.Close())
	}
	require.NoError(t, d.a.Close(context.Background()))
}

// exchange sends messages of each kind and transfers one-sided, until something
// fails.
func exchange(from, to *side, out, in *Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for _, size := range []int64{0, 100, 10_000, 100_000} {
		m := Message{Head: []byte("head")}
		if size > 0 {
			var err error
			if m.Payload, err = from.a.GetList(ctx, size, buffer.Anonymous); err != nil {
				return err
			}
		}
		if err := out.Send(ctx, m); err != nil {
			if m.Payload != nil {
				m.Payload.Release()
			}
			return err
		}
		select {
		case <-to.messages:
		case <-out.Done():
			return out.Err()
		case <-in.Done():
			return in.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !out.CanGrant() {
		return nil
	}
	l, err := from.a.GetList(ctx, 50_000, buffer.Anonymous)
	if err != nil {
		return err
	}
	defer l.Release()
	g, err := out.Grant(ctx, l, false)
	if err != nil {
		return err
	}
	dst, err := to.a.GetList(ctx, 50_000, buffer.Anonymous)
	if err != nil {
		return err
	}
	defer dst.Release()
	if err := in.Read(ctx, dst, g[0], 0); err != nil {
		return err
	}
	return out.Revoke(ctx, g)
}

// scenario makes two endpoints and a connection, exchanges, and takes everything
// down, whatever fails. It reports the error that ended the exchange.
func scenario(t *testing.T, s *verbstest.Script, cfg Config) error {
	b, err := newSide(t, s, cfg)
	defer b.end(t)
	if err != nil {
		require.ErrorIs(t, err, errInjected)
		return err
	}
	a, err := newSide(t, s, cfg)
	defer a.end(t)
	if err != nil {
		require.ErrorIs(t, err, errInjected)
		return err
	}
	if err := b.e.Listen(t.Context(), env.ListenAddr()); err != nil {
		require.ErrorIs(t, err, errInjected)
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c, err := a.e.Dial(ctx, b.e.Addr().String())
	if err != nil {
		return err
	}
	var peer *Conn
	select {
	case peer = <-b.conns:
	case <-c.Done():
		return c.Err()
	}
	if err = exchange(a, b, c, peer); err == nil {
		err = exchange(b, a, peer, c)
	}
	if err == nil {
		return nil
	}
	// Whatever went wrong is the end of the connection, and both sides know.
	if errors.Is(err, errInjected) && c.Err() == nil && peer.Err() == nil {
		return err // a grant that the device refused ends nothing
	}
	for _, c := range []*Conn{c, peer} {
		select {
		case <-c.Done():
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
	return errors.Join(err, c.Err(), peer.Err())
}

// TestFailEachCall fails each call into the driver once, on either side: what
// fails says so, everything ends, and nothing is left.
func TestFailEachCall(t *testing.T) {
	ours := func(o verbstest.Op) bool { return !o.Polled() && o != verbstest.CallCloseDevice }
	for name, cfg := range map[string]Config{"shared": {}, "own queues": {noSRQ: true}} {
		t.Run(name, func(t *testing.T) {
			verbstest.FailEach(t, errInjected, ours, func(t *testing.T, s *verbstest.Script) {
				require.NotErrorIs(t, scenario(t, s, cfg), context.DeadlineExceeded)
			})
		})
	}
}

// TestFailPolling fails the calls that pollers make, once or from some time on.
func TestFailPolling(t *testing.T) {
	for _, op := range []verbstest.Op{verbstest.CallPoll, verbstest.CallReqNotify, verbstest.CallWait} {
		ks := []int{0, 1, 5, 20}
		if env.Device() != "" && testing.Short() {
			ks = []int{1, 20} // under emulation each takes seconds
		}
		for _, k := range ks {
			for _, n := range []int{1, 50} {
				t.Run(fmt.Sprintf("%v/%d to %d", op, k, k+n), func(t *testing.T) {
					s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
						if c.Op == op && c.N >= k && c.N < k+n {
							return verbstest.Fault{Err: errInjected}
						}
						return verbstest.Fault{}
					}}
					require.NotErrorIs(t, scenario(t, s, Config{}), context.DeadlineExceeded)
				})
			}
		}
	}
}

// TestCompletionStatus has a completion fail with each status: the connection
// ends with the kind of fault that it stands for.
func TestCompletionStatus(t *testing.T) {
	for status, kind := range map[verbs.WCStatus]FaultKind{
		verbs.StatusLocLenErr:      FaultLocal,
		verbs.StatusLocProtErr:     FaultLocal,
		verbs.StatusRemAccessErr:   FaultPeer,
		verbs.StatusRemInvReqErr:   FaultPeer,
		verbs.StatusRetryExcErr:    FaultPath,
		verbs.StatusRNRRetryExcErr: FaultPath,
		verbs.StatusGeneralErr:     FaultPath, // siw, when its TCP connection breaks
		verbs.StatusFatalErr:       FaultLocal,
	} {
		t.Run(status.String(), func(t *testing.T) {
			done := false
			s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC {
				for i := range wcs {
					if !done && wcs[i].Opcode == verbs.OpRecv && wcs[i].Status == verbs.StatusSuccess && wcs[i].ByteLen > 100 {
						done = true
						wcs[i].Status = status
					}
				}
				return wcs
			}}
			err := scenario(t, s, Config{})
			require.True(t, done)
			var wc *verbs.WCError
			require.ErrorAs(t, err, &wc)
			require.Equal(t, status, wc.Status)
			require.ErrorContains(t, err, kind.String()+": "+wc.Error())
		})
	}
}

// What a device completes without that it was posted, or for a connection that is
// gone, is counted, and the others go on.
func TestStrangeCompletions(t *testing.T) {
	var made atomic.Bool
	s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC {
		if len(wcs) > 0 && made.CompareAndSwap(false, true) {
			wcs = append(wcs, driver.WC{Status: verbs.StatusSuccess}) // nobody's
		}
		return wcs
	}}
	p := newPair(t, nodeConfig{}, nodeConfig{device: openFaulty(t, s)})
	for range 5 {
		p.b.expect(p.ba, "on", p.a.send(p.ab, "on", 100))
	}
	require.True(t, made.Load())
	st := p.b.Stats()
	require.EqualValues(t, 1, st.Stale)
	require.Zero(t, st.LateReceives)
	require.EqualValues(t, 1, p.b.dev.Stats().StaleCompletions)

	p.ba.p.completed(&lane{}, &verbs.WC{QPN: p.ba.qp.QPN()}) // of a lane that knows none
	require.EqualValues(t, 1, p.b.Stats().LateReceives)
	p.b.expect(p.ba, "still on", p.a.send(p.ab, "still on", 100))
}

// keeper keeps completions of sends back until it is told to give them up.
type keeper struct {
	verbstest.Script
	giveUp atomic.Bool
	kept   []driver.WC
}

func newKeeper() *keeper {
	k := new(keeper)
	k.Poll = func(wcs []driver.WC) (pass []driver.WC) {
		if k.giveUp.Load() {
			pass, k.kept = append(k.kept, wcs...), nil
			return pass
		}
		for _, wc := range wcs {
			if wc.Opcode == driver.OpSend {
				k.kept = append(k.kept, wc)
			} else {
				pass = append(pass, wc)
			}
		}
		return pass
	}
	return k
}

// The connection is not ended before the device has said that the goodbye is
// sent: connection managers do not wait for it.
func TestDisconnectWaitsForSends(t *testing.T) {
	ka, kb := newKeeper(), newKeeper()
	b := newNode(t, nodeConfig{Config: Config{DrainTimeout: wait}, device: openFaulty(t, &kb.Script)})
	addr := b.listen()
	a := newNode(t, nodeConfig{Config: Config{DrainTimeout: wait}, device: openFaulty(t, &ka.Script)})
	c, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	peer := get(t, b.accepted)
	a.send(c, "x", 100)
	over := make(chan error, 1)
	go func() { over <- c.Shutdown(t.Context()) }()
	require.Eventually(t, func() bool { return c.Err() != nil && peer.Err() != nil }, wait, time.Millisecond)
	require.ErrorIs(t, c.Err(), ErrClosed)
	require.ErrorIs(t, peer.Err(), io.EOF)
	require.False(t, c.allSent())
	require.False(t, peer.allSent())
	require.Zero(t, ka.Calls(verbstest.CallDisconnect)+kb.Calls(verbstest.CallDisconnect))
	for _, k := range []*keeper{ka, kb} {
		k.giveUp.Store(true)
	}
	c.kick(mailFail)
	peer.kick(mailFail)
	require.NoError(t, get(t, over))
	get(t, peer.Done())
	require.NotZero(t, ka.Calls(verbstest.CallDisconnect)+kb.Calls(verbstest.CallDisconnect))
}
