package messenger

import (
	"context"
	"errors"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Secure mode on a stream: every byte is msgr v2.1's. A record covers all
// segments of a message behind the first, so it is sealed, and opened, in memory
// of its own: the one copy of secure mode.

// sealedBatch is how many bytes of sealed frames, some of them large, are gathered
// for one write. It is what a cache holds: with four times as much, which the kernel
// then reads from memory, and the peer waits for, a stream of 64 KiB messages was a
// quarter slower.
const sealedBatch = 64 << 10

// sendSealed is send.
func (t *streamTransport) sendSealed(sh *shield, f outFrame) (err error) {
	n := len(f.head) + 4*msgr2.SecurePreambleLen // more than what sealing adds
	if f.data != nil {
		n += int(f.data.Len())
	}
	if t.batch != nil && len(*t.batch)+n > cap(*t.batch) {
		if err = t.flush(); err != nil {
			return err
		}
	}
	if t.batch == nil && n >= streamBatch {
		if err = t.flush(); err != nil {
			return err
		}
		t.batch = getScratch(max(n, sealedBatch))
	}
	if t.batch != nil {
		*t.batch, err = sh.appendFrame(*t.batch, f)
	} else if t.out, err = sh.appendFrame(t.out, f); err == nil && len(t.out) >= streamBatch {
		err = t.flush()
	}
	if err == nil && f.data != nil {
		f.data.Release()
		f.over()
	}
	return err
}

// sealed reads one frame.
func (r *streamReader) sealed(ctx context.Context, sh *shield) error {
	pre := r.buf[:msgr2.SecurePreambleLen]
	if err := r.t.s.ReadFull(pre); err != nil {
		return err
	}
	r.begun = r.l.m.lat.now()
	zero, err := sh.rx.OpenPreamble(pre, &r.p, r.t.limits)
	if err != nil {
		return err
	}
	if n := r.p.SecureRestLen(); n > 0 {
		r.ctl = append(slices.Grow(r.ctl[:0], len(zero)+n), zero...)
		rest := r.ctl[len(zero) : len(zero)+n]
		if err := r.t.s.ReadFull(rest); err != nil {
			return unexpected(err)
		}
		if rest, err = sh.rx.OpenRest(rest, &r.p); err != nil {
			return err
		}
		zero = r.ctl[:len(zero)+len(rest)]
	}
	if r.p.Tag != msgr2.TagMessage {
		return r.l.control(r.p.Tag, zero)
	}
	if err := r.h.Decode(zero); err != nil {
		return err
	}
	return r.sealedMessage(ctx, sh)
}

// readPiece is how much of a record is read before the peer counts as alive
// again.
const readPiece = 1 << 20

// sealedAhead is room behind a record, so that the next frame's preamble comes
// with it in one system call.
const sealedAhead = 4 << 10

// sealedMessage reads the rest of a message: throttles first, then the bytes;
// once they have opened, memory, and where they stay.
func (r *streamReader) sealedMessage(ctx context.Context, sh *shield) (err error) {
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
	if n := int(r.p.SecureTailLen()); n > 0 {
		b := getScratch(n + sealedAhead)
		defer putScratch(b)
		tail := (*b)[:n+sealedAhead]
		for at := 0; at < n; {
			k := min(n-at, readPiece)
			if err := r.t.s.ReadFullAhead(tail[at:], k); err != nil {
				return unexpected(err)
			}
			at += k
			l.touch(true)
		}
		segs, err := sh.rx.OpenTail(tail[:n], &r.p)
		if err != nil {
			if errors.Is(err, msgr2.ErrAborted) {
				m.Release()
				return nil
			}
			return err
		}
		m.growParts(len(segs[0]), len(segs[1]))
		copy(m.Front, segs[0])
		copy(m.Middle, segs[1])
		if data := segs[2]; len(data) > 0 {
			var done func()
			if m.Data, done, err = r.destination(ctx, m, int64(len(data))); err != nil {
				return err
			}
			m.Data.CopyFrom(data)
			done()
		}
	}
	if err := l.fill(m, &r.h); err != nil {
		return err
	}
	return l.receive(&r.h, m)
}
