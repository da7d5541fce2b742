package announce

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/edge/hold"
)

// A process reads the clock, and then sends. When it is stopped in between, it sends late once it
// goes on, whatever it has read. So the kernel reads the clock again, after the system call: a
// program of eBPF at the end of each link compares CLOCK_BOOTTIME with the end of the holds, and
// drops a packet of these sockets that is late. Holder.Answer keeps the end in place while a packet
// is on its way to the kernel.
//
// The program hangs on a link of its own kind (tcx, Linux 6.6), which the kernel removes with its
// last file. So a process that dies leaves nothing behind. On earlier kernels, and where eBPF is
// forbidden, the process's own look at the clock remains.

// deadline is the end of all holds, in memory that the kernel's program reads.
type deadline struct {
	memory  []byte // one page; its first eight bytes are CLOCK_BOOTTIME in nanoseconds
	end     *atomic.Uint64
	values  *os.File // the map that has the memory
	program *os.File
}

// deadlineMark marks the packets of sockets with a deadline (SO_MARK). Other packets pass.
const deadlineMark = 0x0ba9b0e5

// Constants of linux/bpf.h that package unix lacks.
const (
	helperBootTime = 125 // bpf_ktime_get_boot_ns
	markOffset     = 8   // of mark in struct __sk_buff
	verdictNext    = -1  // TCX_NEXT: other programs decide
	verdictDrop    = 2   // TCX_DROP
)

// instruction is struct bpf_insn.
type instruction struct {
	code      uint8
	registers uint8 // the destination in the lower half
	offset    int16
	value     int32
}

// judge is the program. Its first argument, in register 1, is the packet.
func judge(values int) []instruction {
	const toNext, toDrop = 5, 2
	return []instruction{
		{unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W, 2 | 1<<4, markOffset, 0}, // r2 = packet.mark
		{unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K, 2, toNext, deadlineMark}, // another socket's
		{unix.BPF_JMP | unix.BPF_CALL, 0, 0, helperBootTime},                // r0 = now
		{unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW, 1 | unix.BPF_PSEUDO_MAP_VALUE<<4, 0, int32(values)},
		{}, // r1 = the address of end
		{unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW, 1 | 1<<4, 0, 0},     // r1 = end
		{unix.BPF_JMP | unix.BPF_JGE | unix.BPF_X, 0 | 1<<4, toDrop, 0}, // now >= end
		{unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, 0, 0, verdictNext},
		{unix.BPF_JMP | unix.BPF_EXIT, 0, 0, 0},
		{unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, 0, 0, verdictDrop},
		{unix.BPF_JMP | unix.BPF_EXIT, 0, 0, 0},
	}
}

// newDeadline loads the program. Until the first set nothing passes.
func newDeadline() (_ *deadline, err error) {
	d := &deadline{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	ofMap := struct{ kind, key, value, entries, flags uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1, unix.BPF_F_MMAPABLE}
	fd, err := bpf(unix.BPF_MAP_CREATE, unsafe.Pointer(&ofMap), unsafe.Sizeof(ofMap))
	if err != nil {
		return d, fmt.Errorf("make a map of eBPF: %w", err)
	}
	d.values = os.NewFile(uintptr(fd), "the end of the holds")
	d.memory, err = unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return d, fmt.Errorf("map the end of the holds into memory: %w", err)
	}
	d.end = (*atomic.Uint64)(unsafe.Pointer(&d.memory[0]))
	code, license := judge(fd), []byte("none\x00")
	ofProgram := struct {
		kind, count       uint32
		code, license     unsafe.Pointer
		logLevel, logSize uint32
		log               unsafe.Pointer
		version, flags    uint32
		name              [16]byte
		ifindex, attach   uint32
	}{kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(code)), code: unsafe.Pointer(&code[0]),
		license: unsafe.Pointer(&license[0]), name: [16]byte([]byte("barque_deadline\x00"))}
	fd, err = bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&ofProgram), unsafe.Sizeof(ofProgram))
	if err != nil {
		return d, fmt.Errorf("load a program of eBPF: %w", err)
	}
	d.program = os.NewFile(uintptr(fd), "the judge of late packets")
	return d, nil
}

// set replaces the end of the holds.
func (d *deadline) set(end hold.Instant) { d.end.Store(uint64(max(end, 0))) }

// attach lets the program judge the packets that leave by a link, until the file is closed. It
// comes before other programs there, which might let a packet pass that it would drop.
func (d *deadline) attach(l link) (*os.File, error) {
	ofLink := struct {
		program, ifindex, attach, flags uint32
		relative, _                     uint32
		revision                        uint64
	}{program: uint32(d.program.Fd()), ifindex: uint32(l.index), attach: unix.BPF_TCX_EGRESS,
		flags: unix.BPF_F_BEFORE}
	fd, err := bpf(unix.BPF_LINK_CREATE, unsafe.Pointer(&ofLink), unsafe.Sizeof(ofLink))
	if err != nil {
		return nil, fmt.Errorf("attach a program of eBPF to %s: %w", l.name, err)
	}
	return os.NewFile(uintptr(fd), "the judge at "+l.name), nil
}

// close frees what newDeadline has made. set must not be called any more.
func (d *deadline) close() (err error) {
	if d.memory != nil {
		err = unix.Munmap(d.memory)
	}
	for _, f := range []*os.File{d.values, d.program} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// bpf is bpf(2). The kernel keeps none of the memory.
func bpf(command int, attributes unsafe.Pointer, size uintptr) (fd int, err error) {
	r, _, failed := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	if failed != 0 {
		return -1, failed
	}
	unix.CloseOnExec(int(r))
	return int(r), nil
}
