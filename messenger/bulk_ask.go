package messenger

// What we ask of the peer: pulls and pushes by frames. bulk_stream.go has the
// grants, and what the peer asks of us.

import (
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// await enters a question, and numbers its message, as soon as less than maxAsked
// wait for their answers. Errors: ctx's, why the link has ended.
func (b *streamBulk) await(ctx context.Context, m *Message, p *pull) error {
	b.mu.Lock()
	if b.asked == nil {
		b.asked = make(chan struct{}, maxAsked)
	}
	asked := b.asked
	b.mu.Unlock()
	select {
	case asked <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-b.l.gone:
		return b.reset()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return b.reset()
	}
	b.lastTID++
	m.TID = b.lastTID
	if b.pulls == nil {
		b.pulls = map[uint64]*pull{}
	}
	b.pulls[m.TID] = p
	return nil
}

// reset is the end of what the peer was asked, and of grants, on a link that has ended,
// or ends: one that says goodbye has no failure yet.
func (b *streamBulk) reset() error {
	err := b.l.failure()
	if err == nil {
		err = ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrReset, err)
}

// over is reset, or nil while the link lives.
func (b *streamBulk) over() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.l.failure() != nil {
		return b.reset()
	}
	return nil
}

// take takes the question tid out of the table; nil for none.
func (b *streamBulk) take(tid uint64) *pull {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pulls[tid]
	if p != nil {
		delete(b.pulls, tid)
		<-b.asked
	}
	return p
}

// pushed ends a push whose answer has come.
func (b *streamBulk) pushed(m *Message) {
	defer m.Release()
	p := b.take(m.TID)
	switch {
	case p == nil:
	case len(m.Front) < 1 || m.Front[0] != pulledOK:
		p.finish(refusedBy(m))
	default:
		p.finish(nil)
	}
}

// errGrantRefused is the peer's answer: it has no such grant (any more).
var errGrantRefused = fmt.Errorf("%w: %w", ErrBadGrant, ErrStaleGrant)

// refusedBy is the error that an answer other than pulledOK is.
func refusedBy(m *Message) error {
	if len(m.Front) > 0 && m.Front[0] == pulledTooLarge {
		return fmt.Errorf("%w: the peer says so of the answer to a pull", ErrTooLarge)
	}
	return errGrantRefused
}

// pulled ends a pull whose answer has come.
func (b *streamBulk) pulled(m *Message) {
	defer m.Release()
	p := b.take(m.TID)
	switch {
	case p == nil:
		return
	case len(m.Front) < 1 || m.Front[0] != pulledOK:
		p.finish(refusedBy(m))
	case p.dst != nil: // the data was not as long as what was asked for
		err := fmt.Errorf("%w: pull answered with the wrong length", ErrProtocol)
		p.finish(err)
		b.l.fail("read", err)
	default:
		p.finish(nil)
	}
}

func (b *streamBulk) read(ctx context.Context, dst *buffer.List, src []Grant, off uint64) error {
	if err := b.mine(src); err != nil {
		return err
	}
	next := func(left int64) int64 { return b.part(src, off, left) }
	return chunks(dst, next, func(part *buffer.List) error {
		n := part.Len()
		m := NewMessage(typePull)
		asked, err := slice(src, off, uint64(n), false)
		if err != nil {
			part.Release()
			m.Release()
			return err
		}
		off += uint64(n)
		m.Front = AppendGrants(m.Front, asked)
		p := &pull{dst: part, n: n, ch: make(chan error, 1)}
		if err := b.await(ctx, m, p); err != nil {
			part.Release()
			m.Release()
			return err
		}
		if b.post(m, p) != nil {
			return <-p.ch // it does not fit, or the link has ended: either ends the pull
		}
		select {
		case err := <-p.ch:
			return err
		case <-ctx.Done():
			return ctx.Err() // the entry keeps the buffers until the answer is there
		}
	})
}

func (b *streamBulk) write(ctx context.Context, dst []Grant, off uint64, src *buffer.List) error {
	if err := b.mine(dst); err != nil {
		return err
	}
	var answers []*pull
	next := func(left int64) int64 { return b.part(dst, off, left) }
	err := chunks(src, next, func(part *buffer.List) error {
		n := uint64(part.Len())
		m := NewMessage(typePush)
		m.Data = part
		to, err := slice(dst, off, n, true)
		if err != nil {
			m.Release()
			return err
		}
		off += n
		m.Front = AppendGrants(m.Front, to)
		var p *pull
		if b.l.own&featurePushed != 0 {
			p = &pull{n: int64(n), ch: make(chan error, 1)}
			if err := b.await(ctx, m, p); err != nil {
				m.Release()
				return err
			}
			answers = append(answers, p)
		}
		sent := make(chan struct{})
		m.done = func() { close(sent) }
		if err := b.post(m, p); err != nil {
			return err
		}
		select {
		case <-sent:
			return b.over()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	for _, p := range answers {
		if err != nil {
			break // who is not waited for is answered all the same
		}
		select {
		case err = <-p.ch:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return err
}

// mine refuses grants that can not work on this link.
func (b *streamBulk) mine(gs []Grant) error {
	if !b.canGrant() {
		return ErrNotSupported
	}
	if len(gs) > MaxGrants {
		return fmt.Errorf("%w: %d grants, at most %d", ErrInvalid, len(gs), MaxGrants)
	}
	return nil
}

// slice is the part of gs that n bytes from off on are in, each grant cut down
// to its bytes.
func slice(gs []Grant, off, n uint64, write bool) (out []Grant, err error) {
	err = pieces(gs, off, n, write, func(g Grant, at, n uint64) error {
		g.Addr += at
		g.Len = n
		out = append(out, g)
		return nil
	})
	return out, err
}

// chunks calls f with shares of consecutive parts of l, whose reference f takes:
// each of as many bytes as next says of those that are left.
func chunks(l *buffer.List, next func(left int64) int64, f func(part *buffer.List) error) error {
	rest := l.Share()
	for rest.Len() > 0 {
		n := next(rest.Len())
		if n == rest.Len() {
			return f(rest)
		}
		tail := rest.Split(n)
		if err := f(rest); err != nil {
			tail.Release()
			return err
		}
		rest = tail
	}
	rest.Release()
	return nil
}
