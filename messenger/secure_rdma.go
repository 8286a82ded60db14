package messenger

import (
	"context"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Secure mode on RDMA: the head is one record, and the data is sealed into
// memory of the arena, which is what travels. The receiver opens it where it
// has arrived.

// newRDMATransport makes the transport of a link; ctx ends with the link.
func newRDMATransport(ctx context.Context, l *link, c *conn.Conn) *rdmaTransport {
	t := &rdmaTransport{l: l, c: c, ctx: ctx}
	t.bulk.init(l, true, rdmaChunk)
	return t
}

// trySealed is try. Data takes memory, which may have to be waited for.
func (t *rdmaTransport) trySealed(sh *shield, f outFrame) (bool, error) {
	if f.data != nil {
		return false, nil
	}
	before := sh.tx.State()
	head, err := sh.sealHead(f.head, nil)
	if err != nil {
		return false, err
	}
	ok, err := t.c.TrySendDeferred(conn.Message{Head: head})
	if !ok && err == nil {
		sh.tx.Rewind(before) // nobody has seen it
	}
	return ok, connError(err)
}

// sendSealed is send.
func (t *rdmaTransport) sendSealed(sh *shield, f outFrame) error {
	var data *buffer.List
	var tags []byte
	if f.data != nil {
		var err error
		if data, err = t.l.m.cfg.Arena.GetList(t.ctx, f.data.Len(), t.l.m.owner); err != nil {
			if errors.Is(err, buffer.ErrTooLarge) {
				err = fmt.Errorf("%w: %w", ErrTooLarge, err)
			}
			return fmt.Errorf("memory to seal %d bytes in: %w", f.data.Len(), err)
		}
		tags = sh.sealData(data, f.data)
	}
	before := sh.tx.State()
	head, err := sh.sealHead(f.head, tags)
	if err == nil {
		err = t.post(conn.Message{Head: head, Payload: data})
	}
	if err != nil {
		if errors.Is(err, ErrTooLarge) {
			sh.tx.Rewind(before) // nobody has seen it, and the link goes on
		}
		if data != nil {
			data.Release()
		}
		return err
	}
	if f.data != nil {
		sh.txData++
		f.data.Release()
		f.over()
	}
	return nil
}

// lookAhead opens the head of a frame that has not come yet, for Admit; nil when
// it does not open.
func (s *shield) lookAhead(head []byte) []byte {
	plain, err := s.rx.Peek(s.peek[:0], head, s.admitted)
	s.admitted++
	if err != nil {
		return nil // said when it comes
	}
	s.peek = plain
	return plain
}

// openFrame opens the head of a frame, and its data, in place, and returns the
// head.
func (s *shield) openFrame(head []byte, data *buffer.List) ([]byte, error) {
	if s.admitted > 0 {
		s.admitted--
	}
	head, err := s.rx.Open(head)
	if err != nil || data == nil {
		return head, err
	}
	n := msgr2.DataRecords(data.Len()) * msgr2.TagLen
	if n > len(head) {
		return nil, fmt.Errorf("%w: %d bytes of sealed data whose tags are not in a head of %d", ErrProtocol, data.Len(), len(head))
	}
	head, tags := head[:len(head)-n], head[len(head)-n:]
	err = s.openData(data, tags)
	s.rxData++
	return head, err
}

// admitHandshake is asked about a frame before authentication is over: it has no
// payload, which would be fetched before it is looked at.
func (l *link) admitHandshake(payload int64) bool {
	if l != nil && payload > 0 {
		l.fail("handshake", fmt.Errorf("%w: payload of %d bytes in the handshake", ErrProtocol, payload))
		return false
	}
	return true
}

// frames implements bulk.
func (t *rdmaTransport) frames() *streamBulk {
	if t.l.shield == nil && t.l.own&featureFrames == 0 {
		return nil
	}
	return &t.bulk
}

// granted is frames where what we grant is reached by them: one-sided access would
// show the bytes of secure mode, or the device can not confine its keys and l is
// not of memory that is exposed. l may be nil.
func (t *rdmaTransport) granted(l *buffer.List) *streamBulk {
	if t.l.shield == nil && (t.c.CanGrant() || l != nil && t.c.CanGrantOf(l)) {
		return nil
	}
	return t.frames()
}

// reached is frames where the grants of the peer are reached by them. Errors:
// ErrInvalid for a list of both kinds.
func (t *rdmaTransport) reached(gs []Grant) (*streamBulk, error) {
	for _, g := range gs {
		if g.Framed != gs[0].Framed {
			return nil, fmt.Errorf("%w: grants of two kinds in one list", ErrInvalid)
		}
	}
	if t.l.shield != nil || len(gs) > 0 && gs[0].Framed {
		if b := t.frames(); b != nil {
			return b, nil
		}
		return nil, fmt.Errorf("%w: the peer does not know frames for grants on RDMA", ErrNotSupported)
	}
	return nil, nil
}

// place moves the data of a push, or of an answer to a pull, where it belongs:
// what the peer was granted, what the pull waits for.
func (l *link) place(h *msgr2.Header, m *Message) {
	if l.own == 0 || m.Data == nil || (m.Type != typePush && m.Type != typePulled) {
		return
	}
	b := l.t.frames()
	if b == nil {
		return
	}
	dst, done := b.destination(m.Type, h.TID, m.Front, m.Data.Len())
	if dst == nil {
		return
	}
	copyList(dst, m.Data)
	m.Data.Release()
	m.Data, m.placed = dst, true
	done()
}

// copyList copies src over dst, a list of the same length.
func copyList(dst, src *buffer.List) {
	to := cursor{l: dst}
	for i := range src.Segments() {
		to.copyIn(src.At(i).Bytes())
	}
}
