package messenger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// streamBatch is how many bytes of small frames are gathered for one write.
const streamBatch = 64 << 10

// streamTransport carries frames on a byte stream, exactly as Ceph does.
type streamTransport struct {
	streamBulk
	nc     net.Conn
	s      *conn.Stream
	limits msgr2.Limits // ours
	peer   msgr2.Limits // the peer's, as it has told, else ours

	// The sender's: whoever runs Connection.drain.
	out   []byte  // prepared, not yet written
	batch *[]byte // scratch with large sealed frames, likewise; nil while there is something in out
}

func (t *streamTransport) progress() (uint64, bool) { return t.s.Received(), false }

func (l *link) newStream(nc net.Conn) *streamTransport {
	t := &streamTransport{nc: nc, s: conn.NewStream(nc), limits: l.m.limits, peer: l.m.limits}
	t.streamBulk.init(l, false, min(pullChunk, int64(l.m.limits.Data)))
	return t
}

// try never succeeds: a write to a socket may block. Frames go through the
// queue and the goroutine that drains it.
func (t *streamTransport) try(outFrame) (bool, error) { return false, nil }

func (t *streamTransport) ring() {}

func (t *streamTransport) send(f outFrame) error {
	if sh := t.l.shield; sh != nil {
		return t.sendSealed(sh, f)
	}
	if f.data == nil {
		t.out = append(t.out, f.head...)
		if len(t.out) >= streamBatch {
			return t.flush()
		}
		return nil
	}
	t.out = append(t.out, f.head[:f.split]...)
	if err := t.put(t.out, f.data); err != nil {
		return t.abort(f, err)
	}
	f.data.Release()
	f.over()
	t.out = append(t.out[:0], f.head[f.split:]...)
	return nil
}

// abort ends a frame whose data could not be written because of err. Where that
// is because it can not be read, zeros follow, and that the frame is void: the
// error matches ErrUnreadable, and the stream goes on.
func (t *streamTransport) abort(f outFrame, err error) error {
	var u *conn.UnreadableError
	if !errors.As(err, &u) {
		return err
	}
	left := f.data.Len()
	if head := t.out; u.Written < int64(len(head)) { // the kernel takes pieces, and one with both not at all
		if err := t.put(head[u.Written:], nil); err != nil {
			return err
		}
	} else {
		left -= u.Written - int64(len(head))
	}
	var zeros [16 << 10]byte
	for ; left > 0; left -= int64(len(zeros)) {
		if err := t.put(zeros[:min(left, int64(len(zeros)))], nil); err != nil {
			return err
		}
	}
	t.out = append(t.out[:0], f.head[f.split:]...)
	msgr2.Abort(t.out)
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}

// put writes, and notes for how long the peer lets us wait, see link.stalled.
func (t *streamTransport) put(head []byte, data *buffer.List) error {
	t.l.sending.Store(t.l.m.clock())
	defer t.l.sending.Store(0)
	return t.s.Write(head, data)
}

func (t *streamTransport) flush() error {
	if b := t.batch; b != nil {
		t.batch = nil
		err := t.put(*b, nil)
		putScratch(b)
		return err
	}
	if len(t.out) == 0 {
		return nil
	}
	err := t.put(t.out, nil)
	t.out = t.out[:0]
	if cap(t.out) > 2*streamBatch {
		t.out = nil
	}
	return err
}

func (t *streamTransport) fits(head int, data int64) error {
	if head > int(t.peer.Front) || data > int64(t.peer.Data) {
		return fmt.Errorf("%w: %d bytes of head (front and middle, at most %d), %d of data (at most %d)",
			ErrTooLarge, head, t.peer.Front, data, t.peer.Data)
	}
	return nil
}

func (t *streamTransport) close() {
	_ = t.s.Close() // what it says is of no use any more
	t.streamBulk.end()
}

// goodbye half-closes the stream, so that what is on its way still arrives; the
// reader sees the peer's end of it.
func (t *streamTransport) goodbye(context.Context) {
	if h, ok := t.nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		return
	}
	t.close()
}

func (t *streamTransport) frames() *streamBulk { return &t.streamBulk }

// seenAddr is the address of a stream's peer, as HELLO tells it.
func seenAddr(a net.Addr) msgr2.Addr {
	if a == nil {
		return msgr2.Addr{Type: msgr2.AddrMsgr2}
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return msgr2.AddrFrom(msgr2.AddrMsgr2, ap, 0)
}

// handshakeStream runs the handshake on the calling goroutine.
func (l *link) handshakeStream(t *streamTransport, p hsParams) error {
	if err := t.s.SetDeadline(time.Now().Add(l.m.cfg.ConnectTimeout)); err != nil {
		return err
	}
	l.hs = newHandshake(p)
	for _, raw := range l.hs.start() {
		if err := t.s.Write(raw, nil); err != nil {
			return err
		}
	}
	buf := make([]byte, 0, 512)
	for !l.hs.done() {
		raw, err := l.readUnit(t, buf)
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				err = fmt.Errorf("%w waiting for %v: %w", ErrTimeout, l.hs.at, err)
			} else if l.hs.at == hsBanner && !l.incoming && !errors.Is(err, ErrClosed) && !errors.Is(err, msgr2.ErrMalformed) {
				err = fmt.Errorf("the connection ended before the peer's banner (as an iwarp:// port, dialed as tcp://, ends it): %w", err)
			}
			return l.hs.left(err)
		}
		l.touch(true)
		l.m.inject.pause()
		out, err := l.hs.input(raw)
		for _, raw := range out {
			if werr := t.s.Write(raw, nil); werr != nil && err == nil {
				err = werr
			}
		}
		if err != nil {
			return err
		}
	}
	if err := t.s.SetDeadline(time.Time{}); err != nil {
		return err
	}
	l.m.inject.pause()
	return l.established()
}

// readUnit reads the banner or a whole control frame.
func (l *link) readUnit(t *streamTransport, buf []byte) ([]byte, error) {
	n := l.hs.prefixLen()
	buf = slices.Grow(buf[:0], n)[:n]
	if err := t.s.ReadFull(buf); err != nil {
		return nil, err
	}
	whole, err := l.hs.unitLen(buf)
	if err != nil {
		return nil, err
	}
	at := len(buf)
	buf = slices.Grow(buf, whole-at)[:whole]
	return buf, t.s.ReadFull(buf[at:])
}

// readStream reads frames until the link ends. ctx ends with the link. It is the
// link's reader goroutine.
func (l *link) readStream(ctx context.Context, t *streamTransport) {
	r := streamReader{l: l, t: t, woken: make(chan struct{}, 1)}
	r.wake = func() { r.woken <- struct{}{} }
	for {
		if err := r.frame(ctx); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: %w", ErrPeerClosed, err)
			}
			l.fail("read", frameError(err))
			return
		}
	}
}

// streamReader reads the frames of an open link.
type streamReader struct {
	l     *link
	t     *streamTransport
	buf   [msgr2.SecurePreambleLen]byte
	ctl   []byte
	p     msgr2.Preamble
	h     msgr2.Header
	begun time.Duration // latencies.now when the frame's preamble was there
	woken chan struct{}
	wake  func()
}

func (r *streamReader) frame(ctx context.Context) error {
	if err := r.l.m.inject.failure(); err != nil {
		return err
	}
	if sh := r.l.shield; sh != nil {
		return r.sealed(ctx, sh)
	}
	pre := r.buf[:msgr2.PreambleLen]
	if err := r.t.s.ReadFull(pre); err != nil {
		return err
	}
	r.begun = r.l.m.lat.now()
	if err := r.p.Decode(pre, r.t.limits); err != nil {
		return err
	}
	n := r.p.SegZeroLen()
	zero := r.ctl
	if r.p.Tag == msgr2.TagMessage || n <= len(r.buf)-msgr2.PreambleLen {
		zero = r.buf[msgr2.PreambleLen:]
	} else if cap(zero) < n {
		zero = make([]byte, n)
		r.ctl = zero
	}
	zero = zero[:n]
	if err := r.t.s.ReadFull(zero); err != nil {
		return unexpected(err)
	}
	payload, err := r.p.CheckSegZero(zero)
	if err != nil {
		return err
	}
	if r.p.Tag != msgr2.TagMessage {
		return r.l.control(r.p.Tag, payload)
	}
	if err := r.h.Decode(payload); err != nil {
		return err
	}
	return r.message(ctx)
}

// unexpected: the stream may end between frames only.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// message reads the rest of a message: throttles first, then memory, then the
// bytes, straight to where they stay.
func (r *streamReader) message(ctx context.Context) (err error) {
	l, s := r.l, &r.p.Segs
	m := NewMessage(r.h.Type)
	m.begun = r.begun
	defer func() {
		if err != nil {
			m.Release()
		}
	}()
	if !l.exempt(&r.h) {
		size := int64(s[msgr2.SegFront].Len) + int64(s[msgr2.SegMiddle].Len) + int64(s[msgr2.SegData].Len)
		if m.budget, err = r.admit(ctx, size); err != nil {
			return err
		}
	}
	m.growParts(int(s[msgr2.SegFront].Len), int(s[msgr2.SegMiddle].Len))
	if err := r.t.s.ReadFull(m.Front); err != nil {
		return unexpected(err)
	}
	if len(m.Middle) > 0 {
		if err := r.t.s.ReadFull(m.Middle); err != nil {
			return unexpected(err)
		}
	}
	done := func() {}
	if n := s[msgr2.SegData].Len; n > 0 {
		if m.Data, done, err = r.destination(ctx, m, int64(n)); err != nil {
			return err
		}
		for i := range m.Data.Segments() {
			if err := r.t.s.ReadFull(m.Data.At(i).Bytes()); err != nil {
				done()
				return unexpected(err)
			}
			l.touch(true)
		}
	}
	if err := r.epilogue(m); err != nil {
		done()
		if errors.Is(err, msgr2.ErrAborted) {
			m.Release()
			return nil
		}
		return err
	}
	done()
	if err := l.fill(m, &r.h); err != nil {
		return err
	}
	return l.receive(&r.h, m)
}

// destination returns the memory for the data: what the peer was granted, when
// it pushes; what a pull waits for; else new.
func (r *streamReader) destination(ctx context.Context, m *Message, n int64) (*buffer.List, func(), error) {
	if r.l.own != 0 && (m.Type == typePush || m.Type == typePulled) {
		if list, done := r.t.streamBulk.destination(m.Type, r.h.TID, m.Front, n); list != nil {
			m.placed = true
			return list, done, nil
		}
	}
	r.l.holding.Store(true)
	list, err := r.l.m.cfg.Arena.GetList(ctx, n, r.l.m.owner)
	r.l.holding.Store(false)
	if err != nil {
		return nil, func() {}, fmt.Errorf("memory for %d bytes of payload: %w", n, err)
	}
	return list, func() {}, nil
}

// epilogue reads the epilogue and checks what it covers.
func (r *streamReader) epilogue(m *Message) error {
	if r.p.EpilogueLen() == 0 {
		return nil
	}
	ep := r.buf[:msgr2.EpilogueLen]
	if err := r.t.s.ReadFull(ep); err != nil {
		return unexpected(err)
	}
	var e msgr2.Epilogue
	if err := e.Decode(ep); err != nil {
		return err
	}
	if e.Aborted {
		return msgr2.ErrAborted
	}
	return r.l.checkSegments(&r.p, &e, m)
}

// checkSegments compares the checksums of front, middle and data.
func (l *link) checkSegments(p *msgr2.Preamble, e *msgr2.Epilogue, m *Message) error {
	if p.Num > msgr2.SegFront {
		if err := e.Check(msgr2.SegFront, msgr2.CRC(msgr2.CRCSeed, m.Front)); err != nil {
			return err
		}
	}
	if p.Num > msgr2.SegMiddle {
		if err := e.Check(msgr2.SegMiddle, msgr2.CRC(msgr2.CRCSeed, m.Middle)); err != nil {
			return err
		}
	}
	if p.Num > msgr2.SegData && l.sumsData() {
		return e.Check(msgr2.SegData, crcOf(m.Data))
	}
	return nil
}

// admit takes the throttles for size bytes; the stream is not read meanwhile.
func (r *streamReader) admit(ctx context.Context, size int64) (budget, error) {
	a := &r.l.adm
	a.begin(r.l.limit, size)
	for !a.advance(r.wake) {
		r.l.m.n.throttleWaits.Add(1)
		r.l.holding.Store(true)
		defer r.l.holding.Store(false)
		select {
		case <-r.woken:
		case <-ctx.Done():
			a.abandon()
			return budget{}, ErrClosed
		}
	}
	return a.budget(), nil
}
