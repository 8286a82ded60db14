package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// readDepth is how many READs are under way at a time; the device may have fewer.
const readDepth = 16

// reader is one end of a bare queue pair, with memory.
type reader struct {
	dev *verbs.Device
	pd  *verbs.PD
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

// newReader makes everything but the connection. What it returns is to be closed, also on an error.
func newReader(o *options, size int) (r *reader, err error) {
	r = new(reader)
	if r.dev, err = open(o); err != nil {
		return r, err
	}
	if r.pd, err = r.dev.AllocPD(); err != nil {
		return r, err
	}
	mem := make([]byte, size)
	for i := range mem { // so that the pages are there
		mem[i] = byte(i)
	}
	acc := verbs.AccessLocalWrite | verbs.AccessRemoteRead
	if r.dev.Caps().ReadSinkNeedsRemoteWrite {
		acc |= verbs.AccessRemoteWrite
	}
	if r.mr, err = r.pd.RegMR(mem, acc); err != nil {
		return r, err
	}
	if r.ch, err = r.dev.CreateCompChannel(); err != nil {
		return r, err
	}
	if r.cq, err = r.dev.CreateCQ(verbs.CQConfig{Depth: 2 * readDepth, Channel: r.ch}); err != nil {
		return r, err
	}
	r.qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, MaxSendWR: readDepth, MaxRecvWR: 1})
	return r, err
}

func (r *reader) close() error {
	var errs []error
	if r.qp != nil {
		_, err := r.qp.Close()
		errs = append(errs, err)
	}
	if r.cq != nil {
		errs = append(errs, r.cq.Close())
	}
	if r.ch != nil {
		errs = append(errs, r.ch.Close())
	}
	if r.mr != nil {
		errs = append(errs, r.mr.Deregister())
	}
	if r.pd != nil {
		errs = append(errs, r.pd.Close())
	}
	if r.dev != nil {
		errs = append(errs, r.dev.Close())
	}
	return errors.Join(errs...)
}

// serveRead offers memory, whose key travels as private data, until standard input ends. Its first line is its address
// and the size of the memory.
func serveRead(o *options) (err error) {
	r, err := newReader(o, mib)
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l, err := r.dev.Listen(ctx, o.addr+":0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Println(l.Addr())
	request, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var key []byte
	key = binary.BigEndian.AppendUint64(key, r.mr.Addr())
	key = binary.BigEndian.AppendUint32(key, r.mr.RKey())
	caps := r.dev.Caps()
	err = request.Accept(ctx, r.qp, verbs.ConnParam{PrivateData: key, IRD: min(readDepth, caps.MaxIRD), ORD: min(readDepth, caps.MaxORD)})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// read fetches count times size bytes and returns bytes per second.
func read(o *options, size, count int) (rate float64, err error) {
	peer, err := startChild(o, "read")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, peer.close()) }()
	r, err := newReader(o, size)
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	caps := r.dev.Caps()
	p, err := r.qp.Connect(ctx, peer.at, verbs.ConnParam{IRD: min(readDepth, caps.MaxIRD), ORD: min(readDepth, caps.MaxORD)})
	if err != nil {
		return 0, err
	}
	if len(p.PrivateData) < 12 {
		return 0, fmt.Errorf("private data of %d bytes: %s", len(p.PrivateData), strings.ToValidUTF8(strconv.Quote(string(p.PrivateData)), "?"))
	}
	wr := verbs.SendWR{
		Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: r.mr, Length: uint32(size)}},
		RemoteAddr: binary.BigEndian.Uint64(p.PrivateData), RKey: binary.BigEndian.Uint32(p.PrivateData[8:]),
	}
	begin := time.Now()
	err = profiled(o, "read-client", func() error { return r.readAll(ctx, wr, count) })
	return float64(size*count) / time.Since(begin).Seconds(), err
}

// readAll keeps readDepth READs under way. It sleeps when none has completed.
func (r *reader) readAll(ctx context.Context, wr verbs.SendWR, count int) error {
	wcs := make([]verbs.WC, readDepth)
	for posted, done := 0, 0; done < count; {
		for ; posted < count && posted-done < readDepth; posted++ {
			if _, err := r.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		n, err := r.cq.Poll(wcs)
		if err == nil && n == 0 {
			if err = r.cq.ReqNotify(false); err == nil {
				if n, err = r.cq.Poll(wcs); err == nil && n == 0 {
					_, err = r.ch.Wait(ctx)
				}
			}
		}
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.StatusSuccess {
				return verbs.WCErr(&wcs[i])
			}
		}
		done += n
	}
	return nil
}
