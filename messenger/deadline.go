package messenger

import "context"

// deadline is a context that several parties can end. Its Err is that of who was
// first.
type deadline struct {
	context.Context
	cancel context.CancelCauseFunc
}

func newDeadline() *deadline {
	d := &deadline{}
	d.Context, d.cancel = context.WithCancelCause(context.Background())
	return d
}

func (d *deadline) end(err error) { d.cancel(err) }

// Err implements context.Context.
func (d *deadline) Err() error { return context.Cause(d.Context) }

// with has d end with ctx, too, until stop is called.
func (d *deadline) with(ctx context.Context) (stop func() bool) {
	if ctx.Err() != nil { // at once: AfterFunc takes a goroutine
		d.end(ctx.Err())
	}
	return context.AfterFunc(ctx, func() { d.end(ctx.Err()) })
}

// and is a deadline that ends with d or with ctx. It is to be ended.
func (d *deadline) and(ctx context.Context) *deadline {
	both := newDeadline()
	stops := [...]func() bool{both.with(ctx), both.with(d)}
	context.AfterFunc(both, func() {
		for _, stop := range stops {
			stop()
		}
	})
	return both
}
