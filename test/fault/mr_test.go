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

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	chunks    = 3
	chunkSize = 256 << 10
	noteSize  = 64
	scrapByte = 0xee // what the owner writes once the memory is its own again
)

// attack is a deregistration that is tried while a transfer runs.
type attack struct {
	name string
	// whose memory: what the peer's WRITEs go to and its READs come from, the
	// source of WRITEs and SENDs, the receive buffers, or what READs go to.
	victim func(s *side) *verbs.MR
	// try is called until it succeeds, or the transfer has ended.
	try func(ctx context.Context, mr *verbs.MR) error
	// wide gives the peer a key to the region itself, where the device's
	// deregistration is a barrier; and the messages come in many pieces.
	wide bool
}

var (
	open    = func(s *side) *verbs.MR { return s.dstMR }
	source  = func(s *side) *verbs.MR { return s.srcMR }
	receive = func(s *side) *verbs.MR { return s.notesMR }
	sink    = func(s *side) *verbs.MR { return s.backMR }

	deregister     = func(_ context.Context, mr *verbs.MR) error { return mr.Deregister() }
	deregisterWait = func(ctx context.Context, mr *verbs.MR) error { return mr.DeregisterWait(ctx) }
	revoke         = func(ctx context.Context, mr *verbs.MR) error { return mr.Revoke(ctx, false) }
	revokeHard     = func(ctx context.Context, mr *verbs.MR) error { return mr.Revoke(ctx, true) }
)

var attacks = []attack{
	{"Deregister of open memory, peer with its key", open, deregister, true},
	{"Deregister of open memory", open, deregister, false},
	{"Revoke of open memory", open, revoke, false},
	{"Deregister of the source", source, deregister, false},
	{"DeregisterWait of the source", source, deregisterWait, false},
	{"DeregisterWait of the READ sink", sink, deregisterWait, false},
	{"Revoke of the READ sink", sink, revokeHard, false},
	{"Revoke of the receive buffers", receive, revokeHard, false},
}

// Deregistration is tried at every step of a transfer that goes both ways, at
// either end, by another goroutine. No byte lands after it has succeeded, no
// request is lost, nothing leaks.
func TestMRDeregisteredAtEveryStep(t *testing.T) {
	onDevices(t, func(t *testing.T, d device) {
		for _, a := range attacks {
			t.Run(a.name, func(t *testing.T) {
				during, inChunk, runs := 0, 0, 0
				stride := 1
				if testing.Short() {
					stride = 5 // of both ends, in turns
					if env.Device() != "" {
						stride = 25 // under emulation
					}
				}
				for k := 0; ; k += stride {
					tr := newTransfer(t, d, a, k/2, k%2 == 0)
					tr.run()
					tr.end()
					runs++
					if tr.duringTransfer {
						during++
					}
					if tr.inChunk {
						inChunk++
					}
					if t.Failed() || k/2 >= tr.steps {
						t.Logf("%d steps, %d runs: %d times it succeeded before the transfer ended, %d times within a WRITE or READ", tr.steps, runs, during, inChunk)
						break
					}
				}
				if a.wide && env.Device() == "" && !testing.Short() {
					require.Positive(t, during+inChunk, "only transfers that had ended were attacked") // mostly 100 times and more
				}
			})
		}
	})
}

// side is one end with its memory.
type side struct {
	*end
	src, dst, notes, back         []byte
	srcMR, dstMR, notesMR, backMR *verbs.MR
	key                           *verbs.MR // of dst, for the peer; nil: the region's own
	rkey                          uint32
}

// transfer moves chunks both ways at a time by WRITE, each with a SEND behind
// it, and then each end READs back what it has written.
type transfer struct {
	t     *testing.T
	a     attack
	at    int // the step of the attack
	x, y  *side
	owner *side     // of the victim
	mr    *verbs.MR // the victim

	steps          int
	cancel         context.CancelFunc
	attacked       chan struct{} // closed when the attacker has ended; nil: not begun
	done           atomic.Bool   // the victim is deregistered
	duringTransfer bool
	inChunk        bool // a part of a chunk had landed then
	refused        *verbs.BusyError
}

// pattern is what an end sends. It has neither 0 nor scrapByte.
var pattern = func() []byte {
	p := make([]byte, chunks*chunkSize)
	for i := range p {
		p[i] = byte(1 + i/chunkSize*31 + i%113)
	}
	return p
}()

// newTransfer connects two ends for an attack at a step, on memory of who
// accepts or who dials.
func newTransfer(t *testing.T, d device, a attack, at int, acceptor bool) *transfer {
	tr := &transfer{t: t, a: a, at: at, x: newSide(t, d, a), y: newSide(t, d, a)}
	for !d.connect(t, tr.x.end, tr.y.end) {
		tr.x.closeQP()
		tr.y.closeQP()
		tr.closeAll()
		tr.x, tr.y = newSide(t, d, a), newSide(t, d, a)
	}
	tr.owner = tr.x
	if acceptor {
		tr.owner = tr.y
	}
	tr.mr = a.victim(tr.owner)
	for _, s := range []*side{tr.x, tr.y} {
		s.rkey = s.dstMR.RKey()
		if s.scoped(a) {
			var err error
			s.key, err = s.dstMR.Scope(s.qp, 0, chunks*chunkSize, verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
			require.NoError(t, err)
			s.rkey = s.key.RKey()
		}
	}
	return tr
}

func (s *side) scoped(a attack) bool { return s.dev.Caps().ScopedKeys && !a.wide }

func newSide(t *testing.T, d device, a attack) *side {
	s := &side{end: d.newEnd(t, a.wide)}
	acc := verbs.AccessLocalWrite
	if !s.scoped(a) {
		acc |= verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	}
	s.src, s.srcMR = s.memory(chunks*chunkSize, 0)
	s.dst, s.dstMR = s.memory(chunks*chunkSize, acc)
	s.notes, s.notesMR = s.memory(chunks*noteSize, verbs.AccessLocalWrite)
	acc = verbs.AccessLocalWrite
	if s.dev.Caps().ReadSinkNeedsRemoteWrite {
		acc |= verbs.AccessRemoteWrite
	}
	s.back, s.backMR = s.memory(chunks*chunkSize, acc)
	copy(s.src, pattern)
	return s
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
	// A chunk takes some 100 us: not always at its start.
	for begin, wait := time.Now(), rand.N(200*time.Microsecond); time.Since(begin) < wait; {
		runtime.Gosched()
	}
	for ctx.Err() == nil {
		err := tr.a.try(ctx, tr.mr)
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
		if !tr.mr.Live() {
			tr.t.Errorf("not live after a refusal: %v", err)
			return
		}
	}
}

// victim is the memory that is deregistered, and what its owner fills it with
// once it is its own again.
func (tr *transfer) victim() (mem []byte, scrap byte) {
	switch s := tr.owner; tr.mr {
	case s.dstMR:
		return s.dst, 0
	case s.srcMR:
		return s.src, scrapByte
	case s.notesMR:
		return s.notes, scrapByte
	default:
		return s.back, 0
	}
}

// succeeded is called when the victim is its owner's again.
func (tr *transfer) succeeded() {
	mem, scrap := tr.victim()
	if scrap == 0 {
		tr.inChunk = (len(mem)-bytes.Count(mem, []byte{0}))%chunkSize != 0
	}
	copy(mem, bytes.Repeat([]byte{scrap}, len(mem))) // what lands from here on shows
	tr.done.Store(true)
}

func (tr *transfer) run() {
	both := []*side{tr.x, tr.y}
	// each does something at each end, with a step before it.
	each := func(f func(s, peer *side) bool) bool {
		for i, s := range both {
			tr.step()
			if !f(s, both[1-i]) {
				return false
			}
		}
		return true
	}
	for c := range chunks {
		if !each(func(s, _ *side) bool {
			return s.recv(verbs.RecvWR{WRID: uint64(c), SGEs: []verbs.SGE{{MR: s.notesMR, Offset: uint64(c * noteSize), Length: noteSize}}})
		}) {
			return
		}
	}
	for c := range chunks {
		at := uint64(c * chunkSize)
		write, note, read := uint64(100+c), uint64(200+c), uint64(300+c)
		ok := each(func(s, peer *side) bool {
			return s.send(verbs.SendWR{
				WRID: write, Opcode: verbs.OpWrite, SGEs: []verbs.SGE{{MR: s.srcMR, Offset: at, Length: chunkSize}},
				RemoteAddr: peer.dstMR.Addr() + at, RKey: peer.rkey,
			})
		}) && each(func(s, _ *side) bool {
			return s.send(verbs.SendWR{WRID: note, Opcode: verbs.OpSend, SGEs: []verbs.SGE{{MR: s.srcMR, Offset: at, Length: noteSize}}})
		}) && each(func(s, peer *side) bool {
			if !s.wait(uint64(c), peer.end, tr.step) {
				return false
			}
			// What was announced is there, unless its memory has been given up.
			require.True(tr.t, tr.mr == s.dstMR || tr.mr == peer.srcMR || tr.holds(s.dst, c, chunkSize), "chunk %d", c)
			require.True(tr.t, tr.mr == s.notesMR || tr.mr == peer.srcMR || tr.holds(s.notes[c*noteSize:][:noteSize], c, noteSize), "note %d", c)
			return true
		}) && each(func(s, peer *side) bool {
			return s.wait(write, peer.end, tr.step) && s.wait(note, peer.end, tr.step)
		}) && each(func(s, peer *side) bool {
			return s.send(verbs.SendWR{
				WRID: read, Opcode: verbs.OpRead, SGEs: []verbs.SGE{{MR: s.backMR, Offset: at, Length: chunkSize}},
				RemoteAddr: peer.dstMR.Addr() + at, RKey: peer.rkey,
			})
		}) && each(func(s, peer *side) bool {
			if !s.wait(read, peer.end, tr.step) {
				return false
			}
			// A READ that raced with the end of its source has failed.
			require.True(tr.t, tr.mr == s.backMR || tr.holds(s.back, c, chunkSize), "chunk %d read back", c)
			return true
		})
		if !ok {
			return
		}
	}
	tr.step()
}

// holds reports whether n bytes of chunk c are there.
func (tr *transfer) holds(mem []byte, c, n int) bool {
	at := c * chunkSize
	if len(mem) < at+n {
		at = 0 // a note
	}
	return bytes.Equal(mem[at:at+n], pattern[c*chunkSize:][:n])
}

// end closes everything and checks what became of it.
func (tr *transfer) end() {
	tr.duringTransfer = tr.done.Load()
	// What is in flight goes on for a moment beside the attack.
	for _, s := range []*side{tr.x, tr.y} {
		if s.key != nil {
			require.NoError(tr.t, s.key.Deregister())
		}
		s.closeQP()
	}
	if tr.attacked != nil {
		if tr.mr.Live() && !tr.done.Load() {
			select { // nothing is in its way any more
			case <-tr.attacked:
			case <-time.After(10 * time.Second):
				tr.t.Errorf("still refused: %v", tr.refused)
			}
		}
		tr.cancel()
		<-tr.attacked
		require.True(tr.t, tr.done.Load())
		mem, scrap := tr.victim()
		require.Equal(tr.t, len(mem), bytes.Count(mem, []byte{scrap}), "bytes landed after a deregistration that succeeded")
	}
	for _, s := range []*side{tr.x, tr.y} {
		for _, mem := range [][]byte{s.dst, s.back} {
			require.Equal(tr.t, -1, bytes.IndexByte(mem, scrapByte), "the source was read after a deregistration that succeeded")
		}
	}
	tr.closeAll()
}

// closeAll closes what is left of both ends, which have no queue pairs any more.
func (tr *transfer) closeAll() {
	for _, s := range []*side{tr.x, tr.y} {
		for _, mr := range []*verbs.MR{s.srcMR, s.dstMR, s.notesMR, s.backMR} {
			require.Zero(tr.t, mr.InFlight())
			require.NoError(tr.t, mr.Deregister(), fmt.Sprint(mr.Busy()))
		}
		s.close()
	}
}
