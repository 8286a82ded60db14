package messenger

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
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
