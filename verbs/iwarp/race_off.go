//go:build !race

package iwarp

func raceSend([]iovec) {}

func raceReceived([]iovec, int) {}
