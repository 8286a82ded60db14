package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ringer is a transport that takes what it is asked to, and begins with it when it
// is rung: nobody is to wait for a lock of ours meanwhile.
type ringer struct {
	sink
	t           *testing.T
	c           *Connection
	taken, rung int
}

func (r *ringer) try(f outFrame) (bool, error) {
	require.False(r.t, r.c.mu.TryLock(), "what is tried is numbered")
	if f.data != nil {
		f.data.Release()
	}
	f.over()
	r.taken++
	return true, nil
}

func (r *ringer) ring() {
	require.True(r.t, r.c.mu.TryLock(), "Connection.mu is held")
	r.c.mu.Unlock()
	r.rung++
}

func TestNoLockIsHeldWhileTheDeviceBegins(t *testing.T) {
	x := newTarget(t)
	r := &ringer{t: t}
	l := x.open(t, SchemeIWARP, true, nil, func(l *link) transport {
		r.init(l, true, rdmaChunk)
		return r
	})
	c := l.owner.Load()
	r.c = c
	send := map[string]func(){
		"message": func() {
			m := NewMessage(1)
			m.Front = append(m.Front, "x"...)
			require.NoError(t, c.Send(soon(t), m))
		},
		"acknowledgement": func() { c.sendControl(entry{kind: entryAck}) },
		"keepalive":       func() { c.sendControl(entry{kind: entryKeepalive, since: time.Now()}) },
	}
	for what, f := range send {
		before := r.taken
		f()
		require.Equal(t, before+1, r.taken, what)
		require.Equal(t, r.taken, r.rung, what)
	}
	x.end(t, l)
}
