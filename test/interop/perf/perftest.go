package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A run of perftest that takes longer has failed.
const limit = 90 * time.Second

// figure is what perftest gave, if it did: now and then, after a short run above all, it divides by zero.
func figure(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err == nil && (math.IsInf(v, 0) || math.IsNaN(v) || v <= 0) {
		err = errNoFigure
	}
	return v, err
}

var errNoFigure = errors.New("perftest gave no figure")

// perftestBW returns bytes per second, the average of n messages.
func perftestBW(o *options, program string, size, n int) (float64, error) {
	fields, err := perftest(o, program, size, n, 5)
	if err != nil {
		return 0, err
	}
	// #bytes #iterations BW-peak[MiB/sec] BW-average[MiB/sec] MsgRate
	v, err := figure(fields[3])
	return v * mib, err
}

// perftestLat returns half a round trip of 64 bytes, the median of n, in seconds.
func perftestLat(o *options, poll bool, n int) (float64, error) {
	var flags []string
	if !poll {
		flags = []string{"-e"}
	}
	fields, err := perftest(o, "ib_send_lat", pingSize, n, 6, flags...)
	if err != nil {
		return 0, err
	}
	// #bytes #iterations t_min t_max t_typical t_avg ...
	v, err := figure(fields[4])
	return v * 1e-6, err
}

// perftest runs server and client of a program and returns the fields of the client's line of results, at least want.
func perftest(o *options, program string, size, n, want int, flags ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := append([]string{"-d", o.device, "-R", "-F", "-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}, flags...)
	server := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		return nil, err
	}
	fail := func(err error) ([]string, error) {
		_ = server.Process.Kill() // it may have ended
		return nil, fmt.Errorf("%s: %w; the server: %s", program, errors.Join(err, server.Wait()), said.Bytes())
	}
	if err := listening(ctx); err != nil {
		return fail(err)
	}
	out, err := exec.CommandContext(ctx, program, append(args, o.addr)...).CombinedOutput()
	if err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	if err := server.Wait(); err != nil {
		return nil, fmt.Errorf("%s, the server: %w: %s", program, err, said.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= want && f[0] == strconv.Itoa(size) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("%s: no result in %q", program, out)
}

// listening waits until a connection identifier listens: perftest does not say when it does.
func listening(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := exec.CommandContext(ctx, "rdma", "resource", "show", "cm_id").Output()
		if err != nil {
			return err
		}
		if bytes.Contains(out, []byte("LISTEN")) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("it does not listen: %w", ctx.Err())
		}
	}
}
