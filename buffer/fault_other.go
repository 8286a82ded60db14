//go:build !unix

package buffer

import "errors"

// errFault is a device's refusal to pin memory: there are none here.
var errFault = errors.New("bad address")
