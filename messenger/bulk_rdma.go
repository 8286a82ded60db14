package messenger

import (
	"context"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
)

func (t *rdmaTransport) canGrant() bool {
	if b := t.granted(nil); b != nil {
		return b.canGrant()
	}
	return t.c.CanGrant()
}

func (t *rdmaTransport) has(g Grant) bool {
	if t.inFrames(g) {
		return t.bulk.has(g)
	}
	return t.c.Granted(m2g(g))
}

// inFrames reports whether g, which is ours, is reached by frames.
func (t *rdmaTransport) inFrames(g Grant) bool { return t.l.shield != nil || g.Framed }

func (t *rdmaTransport) grants() int { return t.c.Grants() + t.bulk.grants() }

func (t *rdmaTransport) grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error) {
	if b := t.granted(l); b != nil {
		return b.grant(ctx, l, write)
	}
	return gs2m(t.c.Grant(ctx, l, write))
}

func (t *rdmaTransport) grantOnce(ctx context.Context, l *buffer.List, write bool, used func(Grant)) ([]Grant, error) {
	if t.l.shield != nil {
		return nil, fmt.Errorf("%w: grants for one transfer in secure mode", ErrNotSupported)
	}
	return gs2m(t.c.GrantOnce(ctx, l, write, func(g conn.Grant) {
		if used != nil {
			used(g2m(g))
		}
	}))
}

func gs2m(cgs []conn.Grant, err error) ([]Grant, error) {
	if err != nil {
		return nil, connError(err)
	}
	gs := make([]Grant, len(cgs))
	for i, g := range cgs {
		gs[i] = g2m(g)
	}
	return gs, nil
}

func (t *rdmaTransport) revoke(ctx context.Context, gs []Grant) error {
	var keys []conn.Grant
	var frames []Grant
	for _, g := range gs {
		if t.inFrames(g) {
			frames = append(frames, g)
		} else {
			keys = append(keys, m2g(g))
		}
	}
	if b := t.frames(); b != nil && len(frames) > 0 {
		if err := b.revoke(ctx, frames); err != nil {
			return err
		}
	}
	return connError(t.c.Revoke(ctx, keys))
}

func (t *rdmaTransport) read(ctx context.Context, dst *buffer.List, src []Grant, off uint64) error {
	if b, err := t.reached(src); err != nil {
		return err
	} else if b != nil {
		return b.read(ctx, dst, src, off)
	}
	rest := dst.Share()
	defer func() { rest.Release() }()
	return pieces(src, off, uint64(dst.Len()), false, func(g Grant, at, n uint64) error {
		tail := rest.Split(int64(n))
		err := t.c.Read(ctx, rest, m2g(g), at)
		rest.Release()
		rest = tail
		return connError(err)
	})
}

func (t *rdmaTransport) write(ctx context.Context, dst []Grant, off uint64, src *buffer.List) error {
	if b, err := t.reached(dst); err != nil {
		return err
	} else if b != nil {
		return b.write(ctx, dst, off, src)
	}
	rest := src.Share()
	defer func() { rest.Release() }()
	return pieces(dst, off, uint64(src.Len()), true, func(g Grant, at, n uint64) error {
		tail := rest.Split(int64(n))
		err := t.c.Write(ctx, m2g(g), at, rest)
		rest.Release()
		rest = tail
		return connError(err)
	})
}

func g2m(g conn.Grant) Grant {
	return Grant{Addr: g.Addr, Len: g.Len, RKey: g.RKey, Epoch: g.Epoch, Write: g.Write, Once: g.Once}
}

func m2g(g Grant) conn.Grant {
	return conn.Grant{Addr: g.Addr, Len: g.Len, RKey: g.RKey, Epoch: g.Epoch, Write: g.Write, Once: g.Once}
}

// connError adds this package's sentinel to an error of package conn.
func connError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, conn.ErrStaleGrant):
		return fmt.Errorf("%w: %w", ErrStaleGrant, err)
	case errors.Is(err, conn.ErrAccess):
		return fmt.Errorf("%w: %w", ErrBadGrant, err)
	case errors.Is(err, conn.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, conn.ErrNotSupported):
		return fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return err
}
