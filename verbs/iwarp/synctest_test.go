package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// memNet is a network inside the process: connections are pipes, which split reads as they like.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
}

type memAddr string

func (a memAddr) Network() string { return "mem" }
func (a memAddr) String() string  { return string(a) }

type memListener struct {
	n     *memNet
	addr  memAddr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (n *memNet) listen(_ context.Context, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*memListener{}
	}
	l := &memListener{n: n, addr: memAddr(addr), conns: make(chan net.Conn), done: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

func (n *memNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens")
	}
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *memListener) Addr() net.Addr { return l.addr }

// The provider runs in virtual time over an in-memory network: every wait of it is one that a bubble can see, and
// nothing spins.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		c := endConfig{cfg: Config{Dial: n.dial, Listen: n.listen, HandshakeTimeout: time.Hour}}
		a, b := newEnd(t, c), newEnd(t, c)
		connect(t, a, b, "node:1")
		src, sm := a.mem(100<<10, driver.AccessLocalWrite)
		dst, dm := b.mem(100<<10, driver.AccessLocalWrite|driver.AccessRemoteRead)
		pattern(src, 1)
		b.recv(1, sgeOf(dm, 0, 100<<10))
		a.post(driver.SendWR{Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(sm, 0, 100<<10)}})
		a.waitOK(a.scq, 1)
		b.waitOK(b.rcq, 1)
		require.Equal(t, src, dst)
		clear(src)
		a.post(driver.SendWR{Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(sm, 0, 100<<10)}, RemoteAddr: dm.Addr(), RKey: dm.RKey()})
		a.waitOK(a.scq, 1)
		require.Equal(t, dst, src)
		synctest.Wait() // idle: every goroutine is asleep
	})
}

// A listener that accepts and is silent costs the initiator HandshakeTimeout, and a silent initiator the listener.
func TestHandshakeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		silent, err := n.listen(t.Context(), "silent:1")
		require.NoError(t, err)
		go func() { // ends with the connection
			c, err := silent.Accept()
			if err == nil {
				_, _ = c.Read(make([]byte, 1000))
				_, _ = c.Read(make([]byte, 1000))
				_ = c.Close()
			}
		}()
		e := newEnd(t, endConfig{cfg: Config{Dial: n.dial, Listen: n.listen, HandshakeTimeout: 7 * time.Second}})
		begin := time.Now()
		_, err = e.qp.Connect(context.Background(), "silent:1", driver.ConnParam{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 7*time.Second, time.Since(begin))

		l, err := e.dev.Listen(t.Context(), "node:1")
		require.NoError(t, err)
		c, err := n.dial(t.Context(), "node:1")
		require.NoError(t, err)
		begin = time.Now()
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		require.Equal(t, 7*time.Second, time.Since(begin))
		require.NoError(t, l.Close())
	})
}

// Who is refused is in the log, with the reason: once a second at most, however many there are.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		var log bytes.Buffer
		e := newEnd(t, endConfig{cfg: Config{Dial: n.dial, Listen: n.listen, Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		l, err := e.dev.Listen(t.Context(), "node:1")
		require.NoError(t, err)
		stranger := func() {
			c, err := n.dial(t.Context(), "node:1")
			require.NoError(t, err)
			_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n\r\n")) // as long as what is read first
			require.NoError(t, err)
			synctest.Wait()
		}
		for range 3 {
			stranger()
		}
		time.Sleep(time.Second)
		stranger()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 2)
		for i, suppressed := range []string{"suppressed=0", "suppressed=2"} {
			require.Contains(t, lines[i], `level=INFO msg="iwarp: refused a connection" remote=pipe error="`)
			require.Contains(t, lines[i], "MPA")
			require.Contains(t, lines[i], suppressed)
		}

		_, err = n.dial(t.Context(), "node:1")
		require.NoError(t, err)
		synctest.Wait()
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		require.Equal(t, 2, strings.Count(log.String(), "\n"), "our own end is no refusal")
		require.EqualValues(t, 5, e.dev.Stats().HandshakeFailures)
	})
}

// An acceptor of another implementation has a moment between its reply and our first FPDU. The context and the end of
// the QP end the wait. One of ours needs none.
func TestForeignAcceptorHasAMoment(t *testing.T) {
	const early = foreignPause / 2
	// dial runs in a bubble with a QP, and what it is told is how long after the reply the first byte has come.
	for name, dial := range map[string]func(t *testing.T, e *end, addr string, first <-chan time.Duration){
		"waits": func(t *testing.T, e *end, addr string, first <-chan time.Duration) {
			_, err := e.qp.Connect(t.Context(), addr, driver.ConnParam{})
			require.NoError(t, err)
			e.post(driver.SendWR{Opcode: driver.OpSend})
			require.Equal(t, foreignPause, <-first)
		},
		"context": func(t *testing.T, e *end, addr string, first <-chan time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), early)
			defer cancel()
			begin := time.Now()
			_, err := e.qp.Connect(ctx, addr, driver.ConnParam{})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, early, time.Since(begin))
			require.Zero(t, <-first, "nothing")
		},
		"ERR": func(t *testing.T, e *end, addr string, first <-chan time.Duration) {
			time.AfterFunc(early, func() { _ = e.qp.SetState(driver.QPStateErr) })
			begin := time.Now()
			_, err := e.qp.Connect(t.Context(), addr, driver.ConnParam{})
			require.ErrorIs(t, err, driver.ErrQPState)
			require.Equal(t, early, time.Since(begin))
			require.Zero(t, <-first, "nothing")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n memNet
				l, err := n.listen(t.Context(), "foreign:1")
				require.NoError(t, err)
				first := make(chan time.Duration, 1)
				go func() { // ends with the connection
					defer close(first)
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					var d Device
					if _, err := d.readHello(c, false); err != nil {
						return
					}
					h := v2Hello()
					h.frame.Reply = true
					_, _ = c.Write(appendHello(&h))
					begin := time.Now()
					if _, err := c.Read(make([]byte, 1)); err == nil {
						first <- time.Since(begin)
					}
					_, _ = io.Copy(io.Discard, c)
				}()
				dial(t, newEnd(t, endConfig{cfg: Config{Dial: n.dial}}), "foreign:1", first)
			})
		})
	}
	t.Run("ours", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var n memNet
			c := endConfig{cfg: Config{Dial: n.dial, Listen: n.listen}}
			a, b := newEnd(t, c), newEnd(t, c)
			begin := time.Now()
			connect(t, a, b, "node:1")
			require.Zero(t, time.Since(begin))
		})
	})
}
