package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	chunks    = 4
	chunkSize = 256 << 10
	noteSize  = 64
	scrapByte = 0xee // what the owner writes once the memory is its own again
)

// attack is a deregistration that is tried while a transfer runs.
type attack struct {
	name string
	// whose memory: the sink of WRITEs at the target, their source at the
	// initiator, or the target's receive buffers.
	victim func(tr *transfer) *verbs.MR
	// try is called until it succeeds, or the transfer has ended.
	try func(ctx context.Context, mr *verbs.MR) error
	// wide gives the peer a key to the region itself, where the device's
	// deregistration is a barrier; and the messages come in many pieces.
	wide bool
}

var (
	sink    = func(tr *transfer) *verbs.MR { return tr.dstMR }
	source  = func(tr *transfer) *verbs.MR { return tr.srcMR }
	receive = func(tr *transfer) *verbs.MR { return tr.notesMR }
)

var attacks = []attack{
	{"Deregister of the sink, peer with its key", sink, func(_ context.Context, mr *verbs.MR) error { return mr.Deregister() }, true},
	{"Deregister of the sink", sink, func(_ context.Context, mr *verbs.MR) error { return mr.Deregister() }, false},
	{"Revoke of the sink", sink, func(ctx context.Context, mr *verbs.MR) error { return mr.Revoke(ctx, false) }, false},
	{"Deregister of the source", source, func(_ context.Context, mr *verbs.MR) error { return mr.Deregister() }, false},
	{"DeregisterWait of the source", source, func(ctx context.Context, mr *verbs.MR) error { return mr.DeregisterWait(ctx) }, false},
	{"Revoke of the receive buffers", receive, func(ctx context.Context, mr *verbs.MR) error { return mr.Revoke(ctx, true) }, false},
}

// Deregistration is tried at every step of a transfer, by another goroutine. No
// byte lands after it has succeeded, no request is lost, nothing leaks.
func TestMRDeregisteredAtEveryStep(t *testing.T) {
	onDevices(t, func(t *testing.T, d device) {
		for _, a := range attacks {
			t.Run(a.name, func(t *testing.T) {
				during, inChunk, steps := 0, 0, 0
				stride := 1
				if testing.Short() {
					stride = 3
				}
				for k := 0; ; k += stride {
					tr := newTransfer(t, d, a, k)
					tr.run()
					tr.end()
					steps = tr.steps
					if tr.duringTransfer {
						during++
					}
					if tr.inChunk {
						inChunk++
					}
					if t.Failed() || k >= tr.steps {
						break
					}
				}
				t.Logf("%d steps, %d times it succeeded before the transfer ended, %d times within a WRITE", steps, during, inChunk)
			})
		}
	})
}

// transfer moves chunks from x to y by WRITE, each with a SEND behind it, and
// reads them back.
type transfer struct {
	t    *testing.T
	a    attack
	at   int // the step of the attack
	x, y *end

	src, dst, notes, back     []byte
	srcMR, dstMR, notesMR, bk *verbs.MR
	key                       *verbs.MR // of dst, for x
	rkey                      uint32

	steps          int
	cancel         context.CancelFunc
	attacked       chan struct{} // closed when the attacker has ended; nil: not begun
	done           atomic.Bool   // the victim is deregistered
	duringTransfer bool
	inChunk        bool // a part of a chunk had landed then
	refused        *verbs.BusyError
}

// pattern has neither 0 nor scrapByte.
func pattern(chunk, i int) byte { return byte(1 + chunk*31 + i%113) }

func newTransfer(t *testing.T, d device, a attack, at int) *transfer {
	tr := &transfer{t: t, a: a, at: at, x: d.newEnd(t, a.wide), y: d.newEnd(t, a.wide)}
	caps := tr.y.dev.Caps()
	acc := verbs.AccessLocalWrite
	scoped := caps.ScopedKeys && !a.wide
	if !scoped {
		acc |= verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	}
	tr.src, tr.srcMR = tr.x.memory(chunks*chunkSize, 0)
	tr.dst, tr.dstMR = tr.y.memory(chunks*chunkSize, acc)
	tr.notes, tr.notesMR = tr.y.memory(chunks*noteSize, verbs.AccessLocalWrite)
	sink := verbs.AccessLocalWrite
	if tr.x.dev.Caps().ReadSinkNeedsRemoteWrite {
		sink |= verbs.AccessRemoteWrite
	}
	tr.back, tr.bk = tr.x.memory(chunks*chunkSize, sink)
	for c := range chunks {
		for i := range chunkSize {
			tr.src[c*chunkSize+i] = pattern(c, i)
		}
	}
	d.connect(t, tr.x, tr.y)
	tr.rkey = tr.dstMR.RKey()
	if scoped {
		var err error
		tr.key, err = tr.dstMR.Scope(tr.y.qp, 0, chunks*chunkSize, verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		require.NoError(t, err)
		tr.rkey = tr.key.RKey()
	}
	return tr
}

// step counts, and begins the attack when its step has come.
func (tr *transfer) step() {
	if tr.steps == tr.at {
		ctx, cancel := context.WithCancel(context.Background())
		tr.cancel, tr.attacked = cancel, make(chan struct{})
		go tr.attack(ctx) // ends when it has succeeded, or the transfer cancels it
	}
	tr.steps++
}

func (tr *transfer) attack(ctx context.Context) {
	defer close(tr.attacked)
	mr := tr.a.victim(tr)
	// A chunk takes some 100 us: not always at its start.
	for begin, wait := time.Now(), rand.N(200*time.Microsecond); time.Since(begin) < wait; {
		runtime.Gosched()
	}
	for ctx.Err() == nil {
		err := tr.a.try(ctx, mr)
		if err == nil {
			tr.succeeded()
			return
		}
		if busy, ok := errors.AsType[*verbs.BusyError](err); ok {
			tr.refused = busy
		} else if !errors.Is(err, context.Canceled) {
			tr.t.Errorf("refused with %v", err)
			return
		}
		if !mr.Live() {
			tr.t.Errorf("not live after a refusal: %v", err)
			return
		}
	}
}

// succeeded is called when the victim is its owner's again.
func (tr *transfer) succeeded() {
	switch mr := tr.a.victim(tr); mr {
	case tr.dstMR:
		landed := len(tr.dst) - bytes.Count(tr.dst, []byte{0})
		tr.inChunk = landed%chunkSize != 0
		clear(tr.dst) // at once, so that what lands from here on shows
	case tr.srcMR:
		for i := range tr.src {
			tr.src[i] = scrapByte
		}
	case tr.notesMR:
		for i := range tr.notes {
			tr.notes[i] = scrapByte
		}
	}
	tr.done.Store(true)
}

func (tr *transfer) run() {
	x, y := tr.x, tr.y
	for c := range chunks {
		tr.step()
		if !y.recv(verbs.RecvWR{WRID: uint64(c), SGEs: []verbs.SGE{{MR: tr.notesMR, Offset: uint64(c * noteSize), Length: noteSize}}}) {
			return
		}
	}
	for c := range chunks {
		tr.step()
		data := verbs.SGE{MR: tr.srcMR, Offset: uint64(c * chunkSize), Length: chunkSize}
		write, note, read := uint64(100+c), uint64(200+c), uint64(300+c)
		if !x.send(verbs.SendWR{WRID: write, Opcode: verbs.OpWrite, SGEs: []verbs.SGE{data}, RemoteAddr: tr.dstMR.Addr() + uint64(c*chunkSize), RKey: tr.rkey}) {
			return
		}
		tr.step()
		data.Length = noteSize
		if !x.send(verbs.SendWR{WRID: note, Opcode: verbs.OpSend, SGEs: []verbs.SGE{data}}) {
			return
		}
		tr.step()
		if !y.wait(uint64(c), tr.step) {
			return
		}
		// What was announced is there, unless its memory has been given up.
		if tr.a.victim(tr) != tr.dstMR {
			require.True(tr.t, tr.holds(tr.dst, c, chunkSize), "chunk %d", c)
		}
		if tr.a.victim(tr) != tr.notesMR {
			require.True(tr.t, tr.holds(tr.notes[c*noteSize:][:noteSize], c, noteSize), "note %d", c)
		}
		tr.step()
		if !x.wait(write, tr.step) || !x.wait(note, tr.step) {
			return
		}
		tr.step()
		sge := verbs.SGE{MR: tr.bk, Offset: uint64(c * chunkSize), Length: chunkSize}
		if !x.send(verbs.SendWR{WRID: read, Opcode: verbs.OpRead, SGEs: []verbs.SGE{sge}, RemoteAddr: tr.dstMR.Addr() + uint64(c*chunkSize), RKey: tr.rkey}) {
			return
		}
		tr.step()
		if !x.wait(read, tr.step) {
			return
		}
		// The source is not the target's to give up: what was read back is whole,
		// unless the READ raced with the end of its memory, which failed it.
		require.True(tr.t, tr.holds(tr.back, c, chunkSize), "chunk %d read back", c)
	}
	tr.step()
}

// holds reports whether n bytes of chunk c are there.
func (tr *transfer) holds(mem []byte, c, n int) bool {
	at := c * chunkSize
	if len(mem) < at+n {
		at = 0 // a note
	}
	for i := range n {
		if mem[at+i] != pattern(c, i) {
			return false
		}
	}
	return true
}

// end closes everything and checks what became of it.
func (tr *transfer) end() {
	tr.duringTransfer = tr.done.Load()
	// What is in flight goes on for a moment beside the attack.
	tr.x.closeQP()
	if tr.key != nil {
		require.NoError(tr.t, tr.key.Deregister())
	}
	tr.y.closeQP()
	if tr.attacked != nil && tr.a.victim(tr).Live() && !tr.done.Load() {
		select { // nothing is in its way any more
		case <-tr.attacked:
		case <-time.After(10 * time.Second):
			tr.t.Errorf("still refused: %v", tr.refused)
		}
	}
	if tr.attacked != nil {
		tr.cancel()
		<-tr.attacked
		require.True(tr.t, tr.done.Load())
	}
	if tr.done.Load() && tr.a.victim(tr) == tr.dstMR {
		require.Zero(tr.t, len(tr.dst)-bytes.Count(tr.dst, []byte{0}), "bytes landed after a deregistration that succeeded")
	}
	require.Equal(tr.t, -1, bytes.IndexByte(tr.dst, scrapByte), "the source was read after a deregistration that succeeded")
	if tr.done.Load() && tr.a.victim(tr) == tr.notesMR {
		for _, b := range tr.notes {
			require.EqualValues(tr.t, scrapByte, b, "bytes landed in receive buffers after a deregistration that succeeded")
		}
	}
	for _, mr := range []*verbs.MR{tr.srcMR, tr.dstMR, tr.notesMR, tr.bk} {
		require.Zero(tr.t, mr.InFlight())
		require.NoError(tr.t, mr.Deregister(), fmt.Sprint(mr.Busy()))
	}
	tr.x.close()
	tr.y.close()
}
