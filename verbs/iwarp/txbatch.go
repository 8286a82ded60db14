package iwarp

import "github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"

// Implementation constants of a batch of FPDUs.
const (
	batchFPDUs  = 64       // FPDUs of one batch
	batchBytes  = 2 << 20  // payload after which a batch is closed, unless one FPDU is larger
	batchPieces = 512      // stretches of memory; one system call takes up to 1,024
	scratchSize = 48 << 10 // headers, trailers and small payloads
	copyMax     = 512      // bytes of payload that are cheaper to copy behind their header than to gather
	fpduScratch = 4 + wire.UntaggedLen + copyMax + 3 + wire.CRCLen
	heldMax     = 64         // regions in use by one system call
	noRequest   = ^uint64(0) // a response
	noMessage   = ^uint64(1) // nothing to account for
)

// piece is a stretch of bytes on its way out: registered memory, or scratch when reg is nil.
type piece struct {
	reg     *region
	p       []byte
	request uint64 // index of the send request that names reg, or noRequest for a response
}

// ending says that a message's last byte is byte at of the batch.
type ending struct {
	at      int
	request uint64 // index of the send request, or noRequest: a response
}

// txBatch is a run of whole FPDUs, and how much of it the network has taken. It holds no region: each system call
// acquires those that it reads. It is borrowed from the device while there is something to send.
type txBatch struct {
	scratch []byte
	used    int
	snap    []byte // bulk buffer with snapshots of READ responses, when checksums are on
	snapped int

	pieces []piece
	first  int // pieces before it are gone; its p is cut as it goes
	fpdus  int
	total  int // bytes
	sent   int

	ends []ending
	over int // ends before it are reported

	iov  []iovec
	held []*region
}

func newTxBatch() *txBatch {
	return &txBatch{
		scratch: make([]byte, scratchSize),
		pieces:  make([]piece, 0, batchPieces+maxSGE+2),
		ends:    make([]ending, 0, batchFPDUs),
		iov:     make([]iovec, 0, batchPieces+maxSGE+2),
		held:    make([]*region, 0, heldMax),
	}
}

func (b *txBatch) empty() bool { return b.sent == b.total }

func (b *txBatch) reset() {
	clear(b.pieces)
	b.pieces = b.pieces[:0]
	b.ends = b.ends[:0]
	b.used, b.snapped, b.first, b.fpdus, b.total, b.sent, b.over = 0, 0, 0, 0, 0, 0, 0
}

// room says whether one more FPDU may be built.
func (b *txBatch) room() bool {
	return b.fpdus < batchFPDUs && b.total < batchBytes && len(b.pieces) < batchPieces && b.used+fpduScratch <= len(b.scratch)
}

// addScratch adds scratch[from:used], joining it to the scratch before it.
func (b *txBatch) addScratch(from int) {
	if n := len(b.pieces); n > 0 && b.pieces[n-1].reg == nil && from > 0 {
		last := &b.pieces[n-1]
		if l := len(last.p); l > 0 && l <= from && &last.p[0] == &b.scratch[from-l] {
			last.p = b.scratch[from-l : b.used]
			b.total += b.used - from
			return
		}
	}
	b.add(nil, b.scratch[from:b.used], noRequest)
}

func (b *txBatch) add(reg *region, p []byte, request uint64) {
	b.pieces = append(b.pieces, piece{reg: reg, p: p, request: request})
	b.total += len(p)
}

// gather acquires the regions of the pieces left and lists them for writev. It stops short of a region that is gone;
// cut is that piece when it is the very next, and then nothing is held.
func (b *txBatch) gather() (cut *piece) {
	b.iov = b.iov[:0]
	var last *region
	for i := b.first; i < len(b.pieces) && len(b.iov) < iovMax; i++ {
		p := &b.pieces[i]
		if p.reg != nil && p.reg != last {
			if len(b.held) == heldMax {
				return nil
			}
			if !p.reg.acquire() {
				if i == b.first {
					return p
				}
				return nil
			}
			last = p.reg
			b.held = append(b.held, last)
		}
		b.iov = append(b.iov, makeIovec(p.p))
	}
	return nil
}

// letGo releases what gather acquired.
func (b *txBatch) letGo() {
	for i, r := range b.held {
		r.release()
		b.held[i] = nil
	}
	b.held = b.held[:0]
}

// copyOut copies what is next into dst, for connections that take one buffer.
func (b *txBatch) copyOut(dst []byte) (n int, cut *piece) {
	for i := b.first; i < len(b.pieces) && n < len(dst); i++ {
		p := &b.pieces[i]
		if p.reg != nil && !p.reg.acquire() {
			if n == 0 {
				return 0, p
			}
			return n, nil
		}
		n += copy(dst[n:], p.p)
		if p.reg != nil {
			p.reg.release()
		}
	}
	return n, nil
}

// advance notes that n more bytes are gone.
func (b *txBatch) advance(n int) {
	b.sent += n
	for n > 0 {
		p := &b.pieces[b.first]
		if n < len(p.p) {
			p.p = p.p[n:]
			return
		}
		n -= len(p.p)
		*p = piece{}
		b.first++
	}
}
