package bare

import (
	"context"
	"errors"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// Open opens an RDMA device of the kernel, whose interface has the address, or iwarp, the adapter in software.
func Open(device, addr string) (*verbs.Device, error) {
	if device == "iwarp" {
		return iwarp.Open(iwarp.Config{})
	}
	return ibverbs.Open(ibverbs.Config{Device: device, Addr: addr})
}

// Config is what an end is made of.
type Config struct {
	Mem            []byte
	Access         verbs.Access // to Mem
	SendWR, RecvWR int          // most requests outstanding
}

// End is one end. Its fields are not to be changed.
type End struct {
	Dev *verbs.Device
	PD  *verbs.PD
	MR  *verbs.MR // Mem
	CQ  *verbs.CQ
	QP  *verbs.QP
	Mem []byte

	ch *verbs.CompChannel
}

// New makes everything but the connection. On an error nothing is left of it. The device stays the caller's.
func New(dev *verbs.Device, c Config) (_ *End, err error) {
	e := &End{Dev: dev, Mem: c.Mem}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.PD, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.MR, err = e.PD.RegMR(c.Mem, c.Access); err != nil {
		return nil, err
	}
	if e.ch, err = dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if e.CQ, err = dev.CreateCQ(verbs.CQConfig{Depth: c.SendWR + c.RecvWR, Channel: e.ch}); err != nil {
		return nil, err
	}
	e.QP, err = e.PD.CreateQP(verbs.QPConfig{SendCQ: e.CQ, MaxSendWR: c.SendWR, MaxRecvWR: c.RecvWR})
	return e, err
}

// Close ends the connection and gives back all but the device.
func (e *End) Close() error {
	var errs []error
	if e.QP != nil {
		_, err := e.QP.Close()
		errs = append(errs, err)
	}
	if e.CQ != nil {
		errs = append(errs, e.CQ.Close())
	}
	if e.ch != nil {
		errs = append(errs, e.ch.Close())
	}
	if e.MR != nil {
		errs = append(errs, e.MR.Deregister())
	}
	if e.PD != nil {
		errs = append(errs, e.PD.Close())
	}
	return errors.Join(errs...)
}

// SGE is n bytes of Mem from at on.
func (e *End) SGE(at, n int) []verbs.SGE {
	return []verbs.SGE{{MR: e.MR, Offset: uint64(at), Length: uint32(n)}}
}

// Recv posts a receive into n bytes of Mem from at on.
func (e *End) Recv(id uint64, at, n int) error {
	_, err := e.QP.PostRecv([]verbs.RecvWR{{WRID: id, SGEs: e.SGE(at, n)}})
	return err
}

// Poll waits for completions, whatever their status, and returns how many of wcs it has set. It sleeps meanwhile.
func (e *End) Poll(ctx context.Context, wcs []verbs.WC) (int, error) {
	for {
		n, err := e.CQ.Poll(wcs)
		if err != nil || n > 0 {
			return n, err
		}
		if err := e.CQ.ReqNotify(false); err != nil {
			return 0, err
		}
		if n, err := e.CQ.Poll(wcs); err != nil || n > 0 {
			return n, err
		}
		if _, err := e.ch.Wait(ctx); err != nil {
			return 0, err
		}
	}
}
