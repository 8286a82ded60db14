package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// Memory that posted work names is not deregistered: the error says who uses it,
// and closing the queue pair gives the work back.
func ExampleMR_Deregister() {
	device, err := iwarp.Open(iwarp.Config{})
	check(err)
	pd, err := device.AllocPD()
	check(err)
	mr, err := pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite)
	check(err)
	cq, err := device.CreateCQ(verbs.CQConfig{Depth: 16})
	check(err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	check(err)
	_, err = qp.PostRecv([]verbs.RecvWR{{WRID: 7, SGEs: []verbs.SGE{{MR: mr, Length: 4096}}}})
	check(err)

	var busy *verbs.BusyError
	fmt.Println(errors.As(mr.Deregister(), &busy), len(busy.QPs), mr.InFlight())

	orphans, err := qp.Close()
	check(err)
	fmt.Println(orphans[0].WRID, orphans[0].Recv, mr.InFlight())
	check(mr.Deregister())
	check(cq.Close())
	check(pd.Close())
	fmt.Println(len(device.Resources()))
	check(device.Close())
	// Output:
	// true 1 1
	// 7 true 0
	// 0
}

// The verbs, from both ends: connect, post, poll.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	device, err := iwarp.Open(iwarp.Config{})
	check(err)
	pd, err := device.AllocPD()
	check(err)
	mem := make([]byte, 8192)
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
	check(err)
	cq, err := device.CreateCQ(verbs.CQConfig{Depth: 64})
	check(err)
	cfg := verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}
	client, err := pd.CreateQP(cfg)
	check(err)
	server, err := pd.CreateQP(cfg)
	check(err)

	// A receive is posted before the peer can send.
	_, err = server.PostRecv([]verbs.RecvWR{{SGEs: []verbs.SGE{{MR: mr, Offset: 4096, Length: 4096}}}})
	check(err)
	listener, err := device.Listen(ctx, "127.0.0.1:0")
	check(err)
	accepted := make(chan error, 1)
	go func() { // ends with the accept
		request, err := listener.Accept(ctx)
		if err == nil {
			err = request.Accept(ctx, server, verbs.ConnParam{})
		}
		accepted <- err
	}()
	_, err = client.Connect(ctx, listener.Addr(), verbs.ConnParam{})
	check(err)
	check(<-accepted)

	n := copy(mem, "hello")
	_, err = client.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: mr, Length: uint32(n)}},
	}})
	check(err)
	wcs := make([]verbs.WC, 8)
	for received := false; !received; {
		n, err := cq.Poll(wcs) // an application waits on a CompChannel when it is empty
		check(err)
		for _, wc := range wcs[:n] {
			check(verbs.WCErr(&wc))
			if wc.Opcode == verbs.OpRecv {
				received = true
				fmt.Printf("%s\n", mem[4096:4096+wc.ByteLen])
			}
		}
	}

	for _, qp := range []*verbs.QP{client, server} {
		_, err := qp.Close()
		check(err)
	}
	check(listener.Close())
	check(mr.Deregister())
	check(cq.Close())
	check(pd.Close())
	check(device.Close())
	// Output: hello
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Two ends of InfiniBand or RoCE devices connect without a connection manager:
// they tell each other what their queue pairs are by whatever way they have, here
// a pair of functions.
func ExampleQP_Modify() {
	connect := func(qp *verbs.QP, tell func(verbs.QPEndpoint) error, hear func() (verbs.QPEndpoint, error)) error {
		own, err := qp.Endpoint()
		if err != nil {
			return err // verbs.ErrNotSupported on iWARP
		}
		if err := tell(own); err != nil {
			return err
		}
		peer, err := hear()
		if err != nil {
			return err
		}
		if err := qp.Modify(verbs.ModifyAttr{State: verbs.QPStateRTR, Remote: peer}); err != nil {
			return err
		}
		// Receives had been posted before. Whoever sends first waits until the
		// peer has said that it has come to here, too.
		return qp.Modify(verbs.ModifyAttr{State: verbs.QPStateRTS})
	}
	_ = connect
}
