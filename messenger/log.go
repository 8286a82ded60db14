package messenger

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Every line of the log has the messenger's name as "entity". One about a
// Connection has its number as "conn", one about a connection of package conn has
// that one's as "link"; the line that says that a session has been opened, or
// goes on, has both.

// The logger's handler is the user's, and may ask the messenger: no lock of the
// messenger, or of a connection, is held when a line is written, but recvMu of one that
// receives, which nothing that users call takes. (It must not wait for what that one is
// to receive: it holds up its reader.)

// logPause is the least time between two lines of a kind that peers can cause as
// often as they like.
const logPause = time.Second

// mayLog reports whether a line may be written, of a kind whose last one was
// written at last, by clock.
func (m *Messenger) mayLog(last *atomic.Int64) bool {
	now, before := m.clock(), last.Load()
	return (before == 0 || now-before >= int64(logPause)) && last.CompareAndSwap(before, now)
}

// note writes a line about the connection into the log. c.mu is not held.
func (c *Connection) note(level slog.Level, msg string, args ...any) {
	ctx := context.Background()
	if c.m.log.Enabled(ctx, level) {
		c.m.log.Log(ctx, level, msg, append([]any{"conn", c.id, "peer", c.peerName()}, args...)...)
	}
}

// noteOpen tells of l that it is the transport of the connection. c.mu is not
// held.
func (c *Connection) noteOpen(msg string, l *link) {
	if !c.m.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	args := []any{"transport", l.scheme, "remote", l.remote, "incoming", l.incoming}
	if id := l.connID(); id != 0 {
		args = append(args, "link", id)
	}
	c.note(slog.LevelInfo, msg, args...)
}

// note writes a line about a link, which need not have a session yet, into the
// log. No lock is needed.
func (l *link) note(level slog.Level, msg string, args ...any) {
	ctx := context.Background()
	if !l.m.log.Enabled(ctx, level) {
		return
	}
	all := []any{"remote", l.remote}
	if c := l.owner.Load(); c != nil {
		all = append(all, "conn", c.id)
	}
	l.m.log.Log(ctx, level, msg, append(all, args...)...)
}

// connID is the number of the connection of package conn under l, 0 for a
// stream.
func (l *link) connID() uint64 {
	if t, ok := l.transport().(*rdmaTransport); ok {
		return t.c.ID()
	}
	return 0
}
