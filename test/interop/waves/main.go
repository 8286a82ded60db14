// Command waves opens, uses and closes many connections, in waves of processes, kills some of these at any moment, and
// checks that nothing is left of them: neither in the endpoint that they were connected to nor, for an RDMA device of
// the kernel, in the kernel's account.
//
//	waves -device rxe0 -addr 10.9.0.1 [-n 1000] [-seed N]
//
// A client either closes its connections gracefully, or cuts them, or is killed. The server cuts some on its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
)

type options struct {
	device    string
	addr      string // IP address
	n         int    // connections in all
	processes int    // of a wave
	conns     int    // of a process
	seed      uint64
	self      []string // command of a client, to which its arguments are appended
}

func main() {
	var o options
	var peer string
	var cut bool
	flag.StringVar(&o.device, "device", "iwarp", "an RDMA device, or iwarp")
	flag.StringVar(&o.addr, "addr", "127.0.0.1", "IP address of the device")
	flag.IntVar(&o.n, "n", 1000, "connections in all, at least")
	flag.IntVar(&o.processes, "processes", 4, "clients in a wave")
	flag.IntVar(&o.conns, "conns", 25, "connections of a client")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "of who is killed when")
	flag.StringVar(&peer, "peer", "", "be a client of this server (for waves itself)")
	flag.BoolVar(&cut, "cut", false, "cut the connections in the end (for waves itself)")
	flag.Parse()
	if flag.NArg() > 0 || o.n < 1 || o.processes < 1 || o.conns < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o, peer, cut); err != nil {
		fmt.Fprintln(os.Stderr, "waves:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options, peer string, cut bool) error {
	if peer != "" {
		return client(ctx, o, peer, cut)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	o.self = []string{exe}
	return waves(ctx, o, func(s string) { fmt.Println("waves: " + s) })
}

var errLeft = errors.New("something is left")
