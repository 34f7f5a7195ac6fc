package cronoq

import (
	"errors"
	"unicode/utf8"
)

// Whether bytes are one value of MessagePack as a whole, found out before anything is made of them.
// The library that makes values believes a length before it has seen what is counted, and descends
// without an end: five bytes could claim 64 GiB, and brackets could fill the stack, neither of which
// a program survives.

// msgpackDepthMax is how many arrays and maps may stand within each other, as encoding/json has it.
const msgpackDepthMax = 10_000

var (
	errMsgpackCutOff = errors.New("it is cut off")
	errMsgpackMore   = errors.New("there is more behind the value")
	errMsgpackHead   = errors.New("it has a byte that begins no value")
	errMsgpackText   = errors.New("its text is not UTF-8")
	errMsgpackDeep   = errors.New("it is nested too deep")
)

// checkMsgpack returns nil when payload is one whole value.
func checkMsgpack(payload []byte) error {
	var open []uint64 // How many values are still to come, for each array and map around.
	for {
		if len(payload) == 0 {
			return errMsgpackCutOff
		}
		head := msgpackHeadOf(payload[0])
		if !head.isKnown {
			return errMsgpackHead
		}
		payload = payload[1:]
		if uint64(len(payload)) < head.counter+head.size {
			return errMsgpackCutOff
		}
		for _, digit := range payload[:head.counter] {
			head.count = head.count<<8 | uint64(digit)
		}
		size, values := head.counter+head.size, head.count*head.each
		if head.each == 0 {
			size += head.count
		}
		if left := uint64(len(payload)); left < size || left-size < values {
			return errMsgpackCutOff // Every value is at least one byte.
		}
		if head.isText && !utf8.Valid(payload[head.counter:size]) {
			return errMsgpackText // The library would take it as it is.
		}
		payload = payload[size:]
		if values > 0 {
			if open = append(open, values); len(open) > msgpackDepthMax {
				return errMsgpackDeep
			}
			continue
		}
		for len(open) > 0 {
			if open[len(open)-1]--; open[len(open)-1] > 0 {
				break
			}
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			continue
		}
		if len(payload) > 0 {
			return errMsgpackMore
		}
		return nil
	}
}

// msgpackHead is what the first byte of a value says.
type msgpackHead struct {
	isKnown bool
	isText  bool
	counter uint64 // Bytes of the count that follows.
	size    uint64 // Bytes that follow in any case.
	count   uint64 // The count, where the first byte has it: of bytes, or of entries.
	each    uint64 // Values for each that is counted; zero when bytes are.
}

func msgpackHeadOf(first byte) msgpackHead {
	power := func(of byte) uint64 { return 1 << (first - of) }
	switch {
	case first < 0x80, first >= 0xe0, first == 0xc0, first == 0xc2, first == 0xc3:
		return msgpackHead{isKnown: true} // Small numbers, nil, booleans.
	case first < 0x90:
		return msgpackHead{isKnown: true, count: uint64(first & 15), each: 2}
	case first < 0xa0:
		return msgpackHead{isKnown: true, count: uint64(first & 15), each: 1}
	case first < 0xc0:
		return msgpackHead{isKnown: true, isText: true, count: uint64(first & 31)}
	case first == 0xc1:
		return msgpackHead{}
	case first <= 0xc6: // Bytes.
		return msgpackHead{isKnown: true, counter: power(0xc4)}
	case first <= 0xc9: // Extensions, with a byte for their type.
		return msgpackHead{isKnown: true, counter: power(0xc7), size: 1}
	case first <= 0xcb: // Floats.
		return msgpackHead{isKnown: true, size: 4 * power(0xca)}
	case first <= 0xcf:
		return msgpackHead{isKnown: true, size: power(0xcc)}
	case first <= 0xd3:
		return msgpackHead{isKnown: true, size: power(0xd0)}
	case first <= 0xd8:
		return msgpackHead{isKnown: true, size: 1 + power(0xd4)}
	case first <= 0xdb: // Text.
		return msgpackHead{isKnown: true, isText: true, counter: power(0xd9)}
	case first <= 0xdd:
		return msgpackHead{isKnown: true, counter: 2 * power(0xdc), each: 1}
	default:
		return msgpackHead{isKnown: true, counter: 2 * power(0xde), each: 2}
	}
}
