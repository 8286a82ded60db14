// Command perf sets this project against perftest, on the same device and at the same time: what it prints are ratios
// of medians over alternating runs.
//
//	perf -device rxe0 -addr 10.9.0.1 [-runs N] [-only REGEXP] [-short] [-must] [-profile DIR]
//
//	stream   payloads of 64 KiB and 1 MiB over a Conn        against ib_send_bw
//	fetched  payloads of 1 MiB that the peer READs           against ib_send_bw
//	read     READs of 1 MiB, of package verbs                against ib_read_bw
//	ping     64 bytes to and fro over a Conn, half a round   against ib_send_lat, with events (-e) and polling
//
// Both ends of either are processes of their own. perftest connects through rdma_cm (-R), as we do. With -short the
// runs are a few messages long, which shows that everything works and no more; with -must a bar that is missed is an error.
package main
