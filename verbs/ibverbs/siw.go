//go:build ibverbs && linux && cgo

package ibverbs

import "github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"

// spareCQE is a depth at which a completion queue of siw, of 32 bytes an entry, is
// mapped over the offset 0x90000 of a context in which nothing is mapped yet.
const spareCQE = 1 << 15

// reserveOffset keeps siw from mapping the queue of an object at the offset 0x90000
// of its context: libsiw of rdma-core takes that for "none" (SIW_INVAL_UOBJ_KEY), and
// the object can not be created, without a reason, as often as it is tried. A queue
// that nobody uses lies there instead, for as long as the context is open.
func (d *device) reserveOffset() (err error) {
	if !d.siw() {
		return nil
	}
	var none cverbs.CompChannel
	if d.spare, err = d.ctx.CreateCQ(spareCQE, none, 0); err != nil {
		return createErr("ibv_create_cq", err)
	}
	return nil
}

// releaseOffset ends that. What of it the kernel still has ends with the context.
func (d *device) releaseOffset() {
	if d.siw() {
		_ = d.spare.Destroy()
	}
}
