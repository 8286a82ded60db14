package msgr2

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRCSeed starts the checksum of a segment; a preamble's starts at 0.
const CRCSeed = ^uint32(0)

// CRC continues the CRC32C register crc over p. Ceph keeps the register as it
// is, without the inversion before and after that the usual checksum has.
func CRC(crc uint32, p []byte) uint32 {
	return ^crc32.Update(^crc, castagnoli, p)
}
