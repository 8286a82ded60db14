package fault

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// unconfined is a device whose keys can not be confined, as rxe and siw are.
type unconfined struct{ driver.Device }

func (d unconfined) Caps() driver.Caps {
	c := d.Device.Caps()
	c.ScopedKeys, c.MWConfines = false, false
	return c
}

// wide is a peer, x, that has the key of the whole region that an arena of y
// has been granted from.
type wide struct {
	t     *testing.T
	x, y  *end
	a     *buffer.Arena
	evil  []byte
	local *verbs.MR
	rkey  uint32 // of the last grant that was live: the peer does not forget
}

func newWide(t *testing.T, scrub bool) *wide {
	w := &wide{t: t}
	d := device{addr: env.ListenAddr(), open: func(t testing.TB, _ bool) *verbs.Device {
		return env.Core(t, unconfined{env.OpenDriver(t)})
	}}
	for w.x, w.y = d.newEnd(t, false), d.newEnd(t, false); !d.connect(t, w.x, w.y); w.x, w.y = d.newEnd(t, false), d.newEnd(t, false) {
		for _, e := range []*end{w.x, w.y} {
			e.closeQP()
			e.close()
		}
	}
	var err error
	// One slot, so that whoever comes next gets the same.
	w.a, err = buffer.New(buffer.Config{
		Budget: 2 * buffer.Page, Classes: []int{2 * buffer.Page}, Reserve: -1, Scrub: scrub, TrustFabric: true,
	})
	require.NoError(t, err)
	require.NoError(t, w.a.Attach(context.Background(), w.y.pd))
	acc := verbs.AccessLocalWrite
	if w.x.dev.Caps().ReadSinkNeedsRemoteWrite {
		acc |= verbs.AccessRemoteWrite
	}
	w.evil, w.local = w.x.memory(buffer.Page, acc)
	return w
}

// write writes n bytes to y's memory and waits until they are there: a READ does
// not overtake a WRITE.
func (w *wide) write(g *buffer.Grant, addr uint64, n int) {
	if k := g.RKey(); k != 0 {
		w.rkey = k
	}
	for i := range w.evil {
		w.evil[i] = 0x66
	}
	sges := []verbs.SGE{{MR: w.local, Length: uint32(n)}}
	require.True(w.t, w.x.send(verbs.SendWR{WRID: 1, Opcode: verbs.OpWrite, SGEs: sges, RemoteAddr: addr, RKey: w.rkey}))
	require.True(w.t, w.x.wait(1, w.y, func() {}))
	require.True(w.t, w.x.send(verbs.SendWR{WRID: 2, Opcode: verbs.OpRead, SGEs: sges, RemoteAddr: addr, RKey: w.rkey}))
	require.True(w.t, w.x.wait(2, w.y, func() {}))
}

// end closes everything. What a panic has kept is kept by the arena, too.
func (w *wide) end(leaks bool) {
	w.x.closeQP()
	w.y.closeQP()
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(w.t, w.a.Detach(ctx, w.y.pd))
	cancel()
	if err := w.a.Close(ctx); leaks {
		require.ErrorContains(w.t, err, "buffers are held")
	} else {
		require.NoError(w.t, err)
	}
	require.NoError(w.t, w.local.Deregister())
	w.x.close()
	w.y.close()
}

// said is what f panics with, "" if it does not.
func said(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

// A peer with the key of a whole region writes to memory that was taken back.
// The next owner does not see it with Config.Scrub; with the tag invariants it is
// found.
func TestPeerWritesToFreeMemory(t *testing.T) {
	for _, scrub := range []bool{false, true} {
		t.Run(fmt.Sprintf("scrub=%v", scrub), func(t *testing.T) {
			w := newWide(t, scrub)
			first, next := w.a.Owner("first", 0), w.a.Owner("next", 0)
			b, ok := w.a.TryGet(buffer.Page, first)
			require.True(t, ok)
			g, err := b.Grant(w.y.qp, verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
			require.NoError(t, err)
			require.Equal(t, buffer.KeyWide, g.Kind())
			addr := g.Addr()
			w.write(g, addr, 100)
			require.Equal(t, bytes.Repeat([]byte{0x66}, 100), b.Bytes()[:100])
			require.NoError(t, g.Revoke())
			b.Release()

			w.write(g, addr+10, 100)
			var c buffer.RDMABuffer
			text := said(func() { c, ok = w.a.TryGet(buffer.Page, next) })
			if checked {
				require.Contains(t, text, "was written to at offset 10 (0x66) while it was free")
				w.end(true)
				return
			}
			require.Empty(t, text)
			require.True(t, ok)
			want := make([]byte, 110)
			if !scrub {
				want = bytes.Repeat([]byte{0x66}, 110) // the attack works
			}
			require.Equal(t, want, c.Bytes()[:110])
			c.Release()
			w.end(false)
		})
	}
}

// A peer with the key of a whole region writes behind the end of the buffer that
// it was granted: with the tag invariants that is found when it is released.
func TestPeerWritesBehindTheEnd(t *testing.T) {
	w := newWide(t, true)
	b, ok := w.a.TryGet(100, w.a.Owner("victim", 0))
	require.True(t, ok)
	g, err := b.Grant(w.y.qp, verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	require.NoError(t, err)
	w.write(g, g.Addr()+4000, 200)
	require.NoError(t, g.Revoke())
	text := said(b.Release)
	if checked {
		require.Contains(t, text, `of 100 bytes, of owner "victim", was written to at offset 4000 (0x66), behind its end`)
	} else {
		require.Empty(t, text)
	}
	w.end(checked)
}
