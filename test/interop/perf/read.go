package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// readDepth is how many READs are under way at a time, as perftest has them; the device may have fewer.
const readDepth = 128

// newReader makes everything but the connection.
func newReader(dev *verbs.Device, size int) (*bare.End, error) {
	mem := make([]byte, size)
	for i := range mem { // so that the pages are there
		mem[i] = byte(i)
	}
	acc := verbs.AccessLocalWrite | verbs.AccessRemoteRead
	if dev.Caps().ReadSinkNeedsRemoteWrite {
		acc |= verbs.AccessRemoteWrite
	}
	return bare.New(dev, bare.Config{Mem: mem, Access: acc, SendWR: readDepth, RecvWR: 1})
}

// serveRead offers memory, whose key travels as private data, until standard input ends. Its first line is its address
// and the size of the memory.
func serveRead(o *options) (err error) {
	dev, err := bare.Open(o.device, o.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := newReader(dev, mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l, err := dev.Listen(ctx, o.addr+":0")
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
	key = binary.BigEndian.AppendUint64(key, r.MR.Addr())
	key = binary.BigEndian.AppendUint32(key, r.MR.RKey())
	caps := dev.Caps()
	err = request.Accept(ctx, r.QP, verbs.ConnParam{PrivateData: key, IRD: min(readDepth, caps.MaxIRD), ORD: min(readDepth, caps.MaxORD)})
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
	dev, err := bare.Open(o.device, o.addr)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := newReader(dev, size)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	caps := dev.Caps()
	p, err := r.QP.Connect(ctx, peer.at, verbs.ConnParam{IRD: min(readDepth, caps.MaxIRD), ORD: min(readDepth, caps.MaxORD)})
	if err != nil {
		return 0, err
	}
	if len(p.PrivateData) < 12 {
		return 0, fmt.Errorf("private data of %d bytes: %s", len(p.PrivateData), strings.ToValidUTF8(strconv.Quote(string(p.PrivateData)), "?"))
	}
	wr := verbs.SendWR{
		Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: r.SGE(0, size),
		RemoteAddr: binary.BigEndian.Uint64(p.PrivateData), RKey: binary.BigEndian.Uint32(p.PrivateData[8:]),
	}
	begin := time.Now()
	err = profiled(o, "read-client", func() error { return readAll(ctx, r, wr, count) })
	return float64(size*count) / time.Since(begin).Seconds(), err
}

// readAll keeps readDepth READs under way. It polls all the time, as perftest does.
func readAll(ctx context.Context, r *bare.End, wr verbs.SendWR, count int) error {
	wcs := make([]verbs.WC, readDepth)
	for posted, done := 0, 0; done < count; {
		for ; posted < count && posted-done < readDepth; posted++ {
			if _, err := r.QP.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		n, err := r.CQ.Poll(wcs)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if n == 0 {
			runtime.Gosched() // or the runtime interrupts the loop with signals
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
