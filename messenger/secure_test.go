package messenger

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// Messages of all shapes come back in secure mode, on both carriers, and their
// sender's memory is as it was.
func TestSecureMessagesComeBack(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, secured(Config{}), secured(Config{}), nil, nil)
		require.Equal(t, ModeSecure, p.c.Mode())
		for _, c := range []struct{ front, middle, data int64 }{
			{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {3, 5, 7}, {16, 16, 16}, {100, 0, 4096}, {0, 0, 65536},
			{0, 0, 65537}, {7000, 3000, 100_000}, {9, 0, 1 << 20}, {0, 0, 1<<20 + 5}, {1, 2, 4<<20 + 1}, {0, 0, 8 << 20},
		} {
			t.Run(fmt.Sprint(c), func(t *testing.T) {
				m := NewMessage(1)
				front, middle := make([]byte, c.front), make([]byte, c.middle)
				for i := range front {
					front[i] = byte(i)
				}
				for i := range middle {
					middle[i] = byte(3 * i)
				}
				m.Front = append(m.Front, front...)
				m.Middle = middle
				var plain []byte
				var list *buffer.List
				if c.data > 0 {
					list, plain = randomList(t, p.client.cfg.Arena, c.data)
					m.Data = list.Share()
				}
				r, err := p.c.Call(soon(t), m)
				require.NoError(t, err)
				defer r.Release()
				require.Equal(t, front, append([]byte{}, r.Front...))
				require.Equal(t, middle, append([]byte{}, r.Middle...))
				if c.data > 0 {
					require.True(t, string(plain) == string(bytesOf(r.Data)), "the data came back changed")
					require.True(t, string(plain) == string(bytesOf(list)), "the sender's memory was changed")
					list.Release()
				} else {
					require.Nil(t, r.Data)
				}
			})
		}
		require.EqualValues(t, 1, p.server.Stats().Secured)
		require.Zero(t, p.server.Stats().ForgedRecords)
	})
}

// Lists of odd pieces: records that no buffer holds alone.
func TestSecureDataInPieces(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, secured(Config{}), secured(Config{}), nil, nil)
		whole := buffer.NewList()
		var plain []byte
		for _, n := range []int64{1, 4095, 4096, 17, 65536, 65535, 70000, 1, 200_001, 16, 15} {
			l, b := randomList(t, p.client.cfg.Arena, n)
			whole.AppendList(l)
			plain = append(plain, b...)
		}
		m := NewMessage(1)
		m.Data = whole
		r, err := p.c.Call(soon(t), m)
		require.NoError(t, err)
		defer r.Release()
		require.True(t, string(plain) == string(bytesOf(r.Data)))
	})
}

// Many senders at a time, small and large, both ways: the order of sealing is
// the order on the wire.
func TestSecureManyAtATime(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, secured(Config{}), secured(Config{}), nil, nil)
		list, plain := randomList(t, p.client.cfg.Arena, 150_000)
		defer list.Release()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for k := range 40 {
					m := NewMessage(1)
					m.Front = fmt.Appendf(m.Front, "%d-%d", i, k)
					if (i+k)%3 == 0 {
						m.Data = list.Share()
					}
					want := string(m.Front)
					r, err := p.c.Call(soon(t), m)
					if err != nil {
						t.Error(err)
						return
					}
					if string(r.Front) != want || (r.Data != nil && string(bytesOf(r.Data)) != string(plain)) {
						t.Error("another's reply")
					}
					r.Release()
				}
			})
		}
		wg.Wait()
	})
}

// What travels in secure mode shows nothing of what is said.
func TestSecureBytesAreSealed(t *testing.T) {
	var seen syncSlice[[]byte]
	cfg := secured(Config{})
	cfg.DialStream = func(ctx context.Context, hostport string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", hostport)
		if err != nil {
			return nil, err
		}
		return recorded{c, &seen}, nil
	}
	p := newPair(t, SchemeTCP, secured(Config{}), cfg, nil, nil)
	m := NewMessage(1)
	m.Front = append(m.Front, "a secret front"...)
	m.Middle = []byte("a secret middle")
	l, err := p.client.cfg.Arena.GetList(soon(t), 14, buffer.Anonymous)
	require.NoError(t, err)
	l.CopyFrom([]byte("a secret data."))
	m.Data = l
	r, err := p.c.Call(soon(t), m)
	require.NoError(t, err)
	r.Release()
	var all []byte
	for _, b := range seen.all() {
		all = append(all, b...)
	}
	require.NotContains(t, string(all), "secret")
	require.Contains(t, string(all), "ceph v2")
}

// recorded keeps what is written to a connection and read from it.
type recorded struct {
	net.Conn
	seen *syncSlice[[]byte]
}

func (r recorded) Write(p []byte) (int, error) {
	r.seen.add(append([]byte(nil), p...))
	return r.Conn.Write(p)
}

func (r recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.seen.add(append([]byte(nil), p[:n]...))
	return n, err
}

// A grant in secure mode: the bytes travel sealed, on RDMA too, where one-sided
// access would show them.
func TestSecurePullAndPush(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, secured(Config{}), secured(Config{}), nil, nil)
		server := receiveOne(t, p.accepted, "connection")
		require.True(t, p.c.CanGrant())
		src, plain := randomList(t, p.client.cfg.Arena, 5<<20+3)
		defer src.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		dst, _ := randomList(t, p.server.cfg.Arena, 5<<20+3)
		defer dst.Release()
		require.NoError(t, server.Pull(soon(t), dst, gs, 0))
		require.True(t, string(plain) == string(bytesOf(dst)))
		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.ErrorIs(t, server.Pull(soon(t), dst, gs, 0), ErrStaleGrant)

		back, _ := randomList(t, p.client.cfg.Arena, 70_000)
		defer back.Release()
		gs, err = p.c.Grant(soon(t), back, true)
		require.NoError(t, err)
		part, plain := randomList(t, p.server.cfg.Arena, 69_000)
		defer part.Release()
		require.NoError(t, server.Push(soon(t), gs, 500, part))
		r, err := p.c.Call(soon(t), NewMessage(1)) // the bytes are placed before what comes after
		require.NoError(t, err)
		r.Release()
		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.True(t, string(plain) == string(bytesOf(back)[500:69_500]))
	})
}

// A frame that its sender gives up while sending it is read and dropped.
func TestSecureLateAbort(t *testing.T) {
	got := make(chan string, 1)
	m, dial := rawServer(t, secured(Config{}))
	m.AddDispatcher(&handler{})
	c := dial()
	h := handshakeOver(t, c, m, secured(Config{}))
	send := func(aborted bool, front string) {
		p := msgr2.MessagePreamble(len(front), 0, 0)
		raw, err := h.shield.tx.AppendSecure(nil, &p, (&msgr2.Header{Seq: 1, TID: 9, Type: 1}).Append(nil), []byte(front), nil, nil, aborted)
		require.NoError(t, err)
		_, err = c.Write(raw)
		require.NoError(t, err)
	}
	send(true, "never")
	send(false, "now")
	// The answer to the second.
	pre := make([]byte, msgr2.SecurePreambleLen)
	for {
		_, err := io.ReadFull(c, pre)
		require.NoError(t, err)
		var p msgr2.Preamble
		_, err = h.shield.rx.OpenPreamble(pre, &p, msgr2.Limits{})
		require.NoError(t, err)
		tail := make([]byte, p.SecureTailLen())
		_, err = io.ReadFull(c, tail)
		require.NoError(t, err)
		if p.Tag != msgr2.TagMessage {
			continue
		}
		segs, err := h.shield.rx.OpenTail(tail, &p)
		require.NoError(t, err)
		got <- string(segs[0])
		break
	}
	require.Equal(t, "now", <-got)
}

// The nonces of a direction are used up: the connection ends with an error that
// says so, and nothing is sealed twice.
func TestSecureOutOfNonces(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, secured(Config{}), secured(Config{KeepaliveInterval: -1}), nil, nil)
		p.c.mu.Lock()
		tx := p.c.link.shield.tx
		tx.Exhaust()
		p.c.mu.Unlock()
		_, err := p.c.Call(soon(t), NewMessage(1))
		require.ErrorIs(t, err, ErrReset)
		require.ErrorIs(t, p.c.Err(), msgr2.ErrNonces)
	})
}

func TestSecureSteadyStateAllocatesNothing(t *testing.T) {
	if checkedBuild {
		t.Skip("checked builds allocate, and drop what pools are given")
	}
	rounds := 60
	if env.Device() != "" { // it is one of software, and so is AES, under emulation
		rounds = 5
	}
	carriers(t, func(t *testing.T, scheme string) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		got := make(chan struct{}, 1<<16)
		sh := &handler{fast: func(m *Message) bool { m.Release(); got <- struct{}{}; return true }}
		p := newPair(t, scheme, secured(Config{}), secured(Config{}), sh, nil)
		for _, size := range []int64{0, 64 << 10, 1 << 20} {
			var l *buffer.List
			if size > 0 {
				var err error
				l, err = p.client.cfg.Arena.GetList(ctx, size, buffer.Anonymous)
				require.NoError(t, err)
			}
			// A few at a time, so that nothing waits for memory, which allocates.
			steady(t, 8*few, rounds, func(n int) {
				for range n {
					for range 8 {
						m := NewMessage(1)
						m.Front = append(m.Front, "0123456789abcdef"...)
						if l != nil {
							m.Data = l.Share()
						}
						if err := p.c.Send(ctx, m); err != nil {
							t.Error(err)
							return
						}
					}
					for range 8 {
						select {
						case <-got:
						case <-ctx.Done():
							t.Error(ctx.Err())
							return
						}
					}
				}
			}, fmt.Sprintf("8 times %d bytes", size))
			if l != nil {
				l.Release()
			}
		}
	})
}

// Policy.Secure is that of the moment also where a session that exists connects again.
func TestSecureFromTheNextTransportOn(t *testing.T) {
	both := func(name EntityName) Config {
		return Config{Name: name, Auth: []Auth{sharedKey{"abc"}}, Modes: []Mode{ModeCRC, ModeSecure}}
	}
	server, client := newMessenger(t, both(EntityName{OSD, 0})), newMessenger(t, both(EntityName{Client, 7}))
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(&handler{dispatch: echo})
	client.SetPolicy(OSD, LosslessClient())
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	call := func(want Mode) {
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, want, c.Mode())
	}
	for _, want := range []Mode{ModeSecure, ModeCRC} {
		before := ModeCRC + ModeSecure - want
		call(before)
		p := LosslessClient()
		p.Secure = want == ModeSecure
		client.SetPolicy(OSD, p)
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errInjected)
		call(want)
	}
	require.EqualValues(t, 2, c.Stats().Reconnects)
}
