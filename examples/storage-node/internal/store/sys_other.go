//go:build !linux

package store

import (
	"errors"
	"math"
	"os"
	"runtime"
)

// preallocate does nothing here: a full disk shows when the data is written.
func preallocate(*os.File, int64) error { return nil }

// freeSpace is not known here.
func freeSpace(string) (int64, error) { return math.MaxInt64, nil }

// syncDir makes the entries of dir durable where a directory can be synced; Windows writes them through.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
