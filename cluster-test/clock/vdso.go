//go:build linux && amd64

package clock

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// vdso is where things are in the vDSO of a process.
type vdso struct {
	entry uint64 // address of clock_gettime
	cave  uint64 // address of room for the detour, behind all that the image has
}

// symbol is the function that Go's runtime, and C libraries, call.
const symbol = "__vdso_clock_gettime"

// findVDSO looks through a process's memory.
func findVDSO(pid int, mem io.ReaderAt) (*vdso, error) {
	from, to, err := mapping(pid, "[vdso]")
	if err != nil {
		return nil, err
	}
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, int64(from)); err != nil {
		return nil, fmt.Errorf("read the vDSO of process %d: %w", pid, err)
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("the vDSO of process %d: %w", pid, err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("the vDSO of process %d: %w", pid, err)
	}
	v := new(vdso)
	for _, s := range symbols {
		if s.Name == symbol && s.Size >= jumpSize {
			v.entry = from + s.Value
		}
	}
	if v.entry == 0 {
		return nil, fmt.Errorf("the vDSO of process %d has no %s", pid, symbol)
	}
	end := imageEnd(f, image)
	if end+detourSize > uint64(len(image)) {
		return nil, fmt.Errorf("the vDSO of process %d has no room left: %d of %d bytes are used", pid, end, len(image))
	}
	// It holds zeros, or the code of an earlier move.
	if room := image[end:][:detourCode]; len(bytes.Trim(room, "\x00")) > 0 &&
		!bytes.Equal(room, detour(0)[:detourCode]) {
		return nil, fmt.Errorf("the end of the vDSO of process %d is not empty", pid)
	}
	v.cave = from + end
	return v, nil
}

// imageEnd is the first offset that neither a section nor the table of sections uses, aligned.
func imageEnd(f *elf.File, image []byte) uint64 {
	const tableAt, entrySize, entries = 0x28, 0x3a, 0x3c // of the header of an ELF file of 64 bits
	order := binary.LittleEndian
	end := order.Uint64(image[tableAt:]) + uint64(order.Uint16(image[entrySize:]))*uint64(order.Uint16(image[entries:]))
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS {
			end = max(end, s.Offset+s.FileSize)
		}
	}
	return (end + 15) &^ 15
}

// mapping returns the bounds of a named mapping.
func mapping(pid int, name string) (from, to uint64, err error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if !strings.HasSuffix(lines.Text(), " "+name) {
			continue
		}
		_, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to)
		return from, to, err
	}
	return 0, 0, fmt.Errorf("process %d: %w", pid, errNoMapping)
}

var errNoMapping = errors.New("it has no vDSO")

const (
	jumpSize   = 5
	detourCode = 32 // bytes of code, padded so that the offset behind it is aligned
	detourSize = detourCode + 8
)

// detour is the code that clock_gettime is led to, and behind it the seconds that it adds. It is
// called with the clock in EDI and the address of the answer in RSI, which the system call leaves
// as they are, and may change RAX, RCX and R11.
func detour(seconds int64) []byte {
	code := [detourCode]byte{
		0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228: the system call clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xc0, // test eax, eax
		0x75, 0x0e, // jnz ret: it failed
		0x85, 0xff, // test edi, edi
		0x75, 0x0a, // jnz ret: it was not asked for CLOCK_REALTIME
		0x48, 0x8b, 0x0d, 0x0a, 0x00, 0x00, 0x00, // mov rcx, [rip+10]: the value after the code
		0x48, 0x01, 0x0e, // add [rsi], rcx: to the seconds
		0xc3, // ret
	}
	return binary.LittleEndian.AppendUint64(code[:], uint64(seconds))
}

// jump is an instruction at one address that goes on at another.
func jump(from, to uint64) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(int64(to)-int64(from)-jumpSize)))
}
