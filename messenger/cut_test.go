package messenger

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// cutConn ends after so many bytes, both ways together, in the middle of
// whatever is being written.
type cutConn struct {
	net.Conn
	left atomic.Int64
}

func (c *cutConn) take(n int) int {
	left := c.left.Add(-int64(n))
	if left >= 0 {
		return n
	}
	return max(0, n+int(left))
}

func (c *cutConn) Write(p []byte) (int, error) {
	n := c.take(len(p))
	k, err := c.Conn.Write(p[:n])
	if err == nil && n < len(p) {
		c.Conn.Close()
		err = net.ErrClosed
	}
	return k, err
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.take(n) < n {
		c.Conn.Close()
	}
	return n, err
}

// A lossy session whose transport is cut anywhere, in the handshake too,
// delivers at most once and in order, and leaves nothing behind.
func TestCutAnywhere(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	seed := env.Seed(t)
	carriers(t, func(t *testing.T, scheme string) {
		if scheme != SchemeTCP {
			env.UserSpace(t, "it cuts the adapter's TCP connections")
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		var mu sync.Mutex
		last := map[uint32]uint32{}
		var delivered, checked int
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, ConnectTimeout: 2 * time.Second})
		server.AddDispatcher(&handler{dispatch: func(ctx context.Context, m *Message) bool {
			client, n := binary.LittleEndian.Uint32(m.Front), binary.LittleEndian.Uint32(m.Front[4:])
			mu.Lock()
			delivered++
			if n <= last[client] {
				t.Errorf("client %d: message %d after %d", client, n, last[client])
			}
			last[client] = n
			mu.Unlock()
			if m.Data != nil {
				for i := range m.Data.Segments() {
					for _, b := range m.Data.At(i).Bytes() {
						if b != byte(n) {
							t.Errorf("client %d, message %d: wrong payload", client, n)
							break
						}
					}
				}
				mu.Lock()
				checked++
				mu.Unlock()
			}
			return echo(ctx, m)
		}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))

		arena := newArena(t)
		for round := range uint32(rounds) {
			limit := int64(rnd.ExpFloat64() * 200_000)
			dial := func(ctx context.Context, addr string) (net.Conn, error) {
				var d net.Dialer
				c, err := d.DialContext(ctx, "tcp", addr)
				if err != nil {
					return nil, err
				}
				cut := &cutConn{Conn: c}
				cut.left.Store(limit)
				return cut, nil
			}
			dev, err := iwarp.Open(iwarp.Config{Dial: dial})
			require.NoError(t, err)
			client := newMessenger(t, Config{
				Arena: arena, DialStream: dial, ConnectTimeout: 2 * time.Second,
				Transports: []Transport{{Scheme: schemeDevice, Open: func(cfg conn.Config) (*conn.Endpoint, error) {
					return conn.NewEndpoint(dev, arena, cfg)
				}}},
			})
			c, err := client.ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			for n := uint32(1); n <= 20; n++ {
				m := NewMessage(1)
				m.Front = binary.LittleEndian.AppendUint32(m.Front, round)
				m.Front = binary.LittleEndian.AppendUint32(m.Front, n)
				if size := int64(rnd.ExpFloat64()*40_000) - 10_000; size > 0 {
					m.Data, err = arena.GetList(soon(t), size, 0)
					require.NoError(t, err)
					for i := range m.Data.Segments() {
						b := m.Data.At(i).Bytes()
						for j := range b {
							b[j] = byte(n)
						}
					}
				}
				r, err := c.Call(ctx, m)
				if err != nil {
					m.Release()
					require.True(t, errors.Is(err, ErrReset) || errors.Is(err, context.DeadlineExceeded), "%v", err)
					break
				}
				r.Release()
			}
			cancel()
			require.NoError(t, client.Close())
			require.NoError(t, dev.Close())
			require.Zero(t, arena.Account().Held, "the client's buffers are back")
		}
		require.Eventually(t, func() bool {
			st := server.Stats()
			return st.Open == 0 && st.HalfOpen == 0 && st.DispatchBytes == 0 && server.cfg.Arena.Account().Held == 0
		}, patience, 5*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d messages delivered, %d with payload", delivered, checked)
		require.NotZero(t, delivered)
	})
}
