package messenger

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lines is what has been logged, line by line.
func lines(t *testing.T, log *syncSlice[string]) (all []map[string]any) {
	t.Helper()
	for _, text := range log.all() {
		var l map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &l))
		all = append(all, l)
	}
	return all
}

// messagesOf are the messages of the lines with value v of key.
func messagesOf(all []map[string]any, key string, v uint64) (msgs []string) {
	for _, l := range all {
		if n, ok := l[key].(float64); ok && uint64(n) == v {
			msgs = append(msgs, l["msg"].(string))
		}
	}
	return msgs
}

// The lines of one connection are found by its number, and those of its
// transports by theirs, which the connection's lines and the inspection have.
func TestLogHasIdentifiers(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var log syncSlice[string]
		logger := slog.New(slog.NewJSONHandler(logSlice{&log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		var servers [2]*Messenger
		for i := range servers {
			servers[i] = newMessenger(t, Config{Name: EntityName{OSD, int64(i)}})
			servers[i].SetPolicy(Client, StatefulServer())
			require.NoError(t, servers[i].Bind(soon(t), anyAddr(scheme)))
		}
		client := newMessenger(t, Config{Name: EntityName{Client, 3}, Logger: logger})
		client.SetPolicy(OSD, LosslessClient())
		c, err := client.ConnectTo(OSD, servers[0].Addrs())
		require.NoError(t, err)
		other, err := client.ConnectTo(OSD, servers[1].Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		require.NoError(t, other.Ready(soon(t)))
		require.NotEqual(t, c.ID(), other.ID())
		other.MarkDown()

		logged := func(msg string) { // a little behind what it tells of
			t.Helper()
			require.Eventually(t, func() bool {
				return slices.Contains(messagesOf(lines(t, &log), "conn", c.ID()), msg)
			}, patience, time.Millisecond, msg)
		}
		logged("session opened")
		links := map[uint64]bool{}
		see := func() {
			for _, i := range client.Inspect(InspectQuery{}).Connections {
				if i.ID == c.ID() && i.State == StateOpen.String() {
					links[i.Link] = true
				}
			}
		}
		see()
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errors.New("the test cuts it"))
		logged("session has lost its transport")
		logged("session reconnected")
		see()
		c.MarkDown()
		require.NoError(t, client.Close())

		all := lines(t, &log)
		require.NotEmpty(t, all)
		for _, l := range all {
			require.Equal(t, "client.3", l["entity"], "%v", l)
		}
		msgs := messagesOf(all, "conn", c.ID())
		require.ElementsMatch(t, []string{"session opened", "session has lost its transport", "session reconnected", "session marked down"}, msgs)
		require.Contains(t, messagesOf(all, "conn", other.ID()), "session opened")
		if scheme == SchemeTCP {
			require.Equal(t, map[uint64]bool{0: true}, links)
			return
		}
		require.Len(t, links, 2)
		for id := range links {
			msgs := messagesOf(all, "link", id)
			require.Contains(t, msgs, "connection made")
			require.Contains(t, msgs, "connection ended")
			require.True(t, slices.Contains(msgs, "session opened") || slices.Contains(msgs, "session reconnected"), "%v", msgs)
		}
	})
}

// askingHandler is a handler of logs that asks the messenger which writes them.
type askingHandler struct {
	m  *atomic.Pointer[Messenger]
	on string           // the message of the line at which it asks
	do func(*Messenger) // what it asks
}

func (h askingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h askingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h askingHandler) WithGroup(string) slog.Handler            { return h }
func (h askingHandler) Handle(_ context.Context, r slog.Record) error {
	if m := h.m.Load(); m != nil && r.Message == h.on {
		h.do(m)
	}
	return nil
}

// A handler of logs may ask the messenger, at a peer that is refused too.
func TestLogHandlerMayAskAtARefusal(t *testing.T) {
	var m atomic.Pointer[Messenger]
	asked := make(chan AddrVec, 1)
	h := askingHandler{&m, "handshake refused", func(m *Messenger) { asked <- m.Addrs() }}
	server, dial := rawServer(t, Config{MaxHalfOpen: 1, Logger: slog.New(h)})
	m.Store(server)
	dial()
	require.Eventually(t, func() bool { return server.Stats().HalfOpen == 1 }, patience, time.Millisecond)
	dial()
	require.NotEmpty(t, receiveOne(t, asked, "answer to the handler"))
	closedByPeer(t, dial()) // the next one is refused, and not told of so soon
	require.EqualValues(t, 2, server.Stats().HandshakesRefused)
}

// Nor does a frame that is shown hold a lock of its connection.
func TestLogHandlerMayAskAtAFrame(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var m atomic.Pointer[Messenger]
		var c atomic.Pointer[Connection]
		asked := make(chan State, 64)
		h := askingHandler{&m, "frame sent", func(*Messenger) {
			if c := c.Load(); c != nil {
				asked <- c.State()
			}
		}}
		p := newPair(t, scheme, Config{}, Config{Inject: &Inject{DumpOnSend: true}, Logger: slog.New(h)}, nil, nil)
		c.Store(p.c)
		m.Store(p.client)
		r, err := p.c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, StateOpen, receiveOne(t, asked, "answer to the handler"))
	})
}
