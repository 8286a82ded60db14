// Package cverbs calls libibverbs and librdmacm, one Go function for each C
// function and no policy. It is the only package with import "C"; everything in
// it but this comment needs the build tag ibverbs, Linux and cgo.
//
// Handles (Context, PD, QP ...) are C pointers in a struct: values, comparable,
// usable as map keys, and as unsafe as in C after their destroy function. Work
// requests and completions cross in arrays of flat structs without pointers,
// up to MaxBatch for each crossing, and nothing on that path allocates.
//
// Errors are the unix.Errno of the call, unwrapped.
package cverbs
