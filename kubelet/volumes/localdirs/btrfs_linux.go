package localdirs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// btrfs enforces the size of a subvolume by its quota group, where quotas are enabled. These are
// the calls for that, of linux/btrfs.h and linux/btrfs_tree.h. All go through a directory of the
// file system.

const (
	btrfsSubvolumeCreate = 0x5000940e // BTRFS_IOC_SUBVOL_CREATE
	btrfsTreeSearch      = 0xd0009411 // BTRFS_IOC_TREE_SEARCH
	btrfsInodeLookup     = 0xd0009412 // BTRFS_IOC_INO_LOOKUP
	btrfsQuotaGroup      = 0x4010942a // BTRFS_IOC_QGROUP_CREATE, which removes as well
	btrfsQuotaLimit      = 0x8030942b // BTRFS_IOC_QGROUP_LIMIT

	btrfsRootInode = 256 // of each subvolume
	btrfsQuotaTree = 8

	btrfsQuotaStatus   = 240 // keys of the quota tree
	btrfsQuotaInfo     = 242
	btrfsQuotaLimitKey = 244

	btrfsQuotasOn      = 1 << 0
	btrfsMaxReferenced = 1 << 0
)

func btrfsCall[T any](dir *os.File, request uint, argument *T) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), uintptr(request), uintptr(unsafe.Pointer(argument)))
	if errno != 0 {
		return errno
	}
	return nil
}

// btrfsItem reads one item of the quota tree; nil when it is not there.
func btrfsItem(dir *os.File, kind uint32, id uint64) ([]byte, error) {
	var search struct {
		tree, minObject, maxObject, minOffset, maxOffset, minTransaction, maxTransaction uint64
		minType, maxType, items, _                                                       uint32
		_                                                                                [4]uint64
		found                                                                            [4096 - 104]byte
	}
	search.tree, search.minOffset, search.maxOffset, search.maxTransaction = btrfsQuotaTree, id, id, ^uint64(0)
	search.minType, search.maxType, search.items = kind, kind, 1
	err := btrfsCall(dir, btrfsTreeSearch, &search)
	if errors.Is(err, unix.ENOENT) || err == nil && search.items == 0 {
		return nil, nil // there is no quota tree, or no such item
	}
	if err != nil {
		return nil, fmt.Errorf("read the quotas of btrfs: %w", err)
	}
	// The header is a transaction, the key's object and offset, and as 32 bits the type and the
	// length.
	const header = 32
	length := binary.NativeEndian.Uint32(search.found[28:])
	if length > uint32(len(search.found)-header) {
		return nil, fmt.Errorf("read the quotas of btrfs: an item has %d bytes", length)
	}
	return search.found[header : header+length], nil
}

// btrfsQuotas reports whether a directory is on a file system that enforces the
// sizes of subvolumes.
func btrfsQuotas(dir *os.File) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir.Name(), Err: err}
	}
	if stat.Type != unix.BTRFS_SUPER_MAGIC {
		return false, nil
	}
	status, err := btrfsItem(dir, btrfsQuotaStatus, 0)
	if err != nil || len(status) < 24 {
		return false, err
	}
	return binary.LittleEndian.Uint64(status[16:])&btrfsQuotasOn != 0, nil
}

// btrfsMake makes a subvolume in a directory.
func btrfsMake(parent *os.File, name string) error {
	var argument struct {
		_    int64
		name [4088]byte
	}
	if len(name) >= len(argument.name) {
		return unix.ENAMETOOLONG
	}
	copy(argument.name[:], name)
	if err := btrfsCall(parent, btrfsSubvolumeCreate, &argument); err != nil {
		return &os.PathError{Op: "make a subvolume", Path: name, Err: err}
	}
	return nil
}

// btrfsID returns the number of the subvolume whose root a directory is; 0 when it is none.
func btrfsID(dir *os.File) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	if stat.Ino != btrfsRootInode {
		return 0, nil
	}
	var lookup struct {
		tree, object uint64
		_            [4080]byte
	}
	lookup.object = btrfsRootInode
	if err := btrfsCall(dir, btrfsInodeLookup, &lookup); err != nil {
		return 0, &os.PathError{Op: "look up the subvolume", Path: dir.Name(), Err: err}
	}
	return lookup.tree, nil
}

// btrfsLimit bounds the size of a subvolume.
func btrfsLimit(dir *os.File, id uint64, bytes int64) error {
	var limit struct {
		group                                                                     uint64
		flags, maxReferenced, maxExclusive, reservedReferenced, reservedExclusive uint64
	}
	limit.group, limit.flags, limit.maxReferenced = id, btrfsMaxReferenced, uint64(bytes)
	if err := btrfsCall(dir, btrfsQuotaLimit, &limit); err != nil {
		return &os.PathError{Op: "limit the subvolume", Path: dir.Name(), Err: err}
	}
	return nil
}

// btrfsForget removes the quota group of a deleted subvolume. Newer kernels do so themselves; a
// kernel that is not done with the subvolume keeps the group, which does no harm.
func btrfsForget(dir *os.File, id uint64) error {
	var argument struct{ create, group uint64 }
	argument.group = id
	err := btrfsCall(dir, btrfsQuotaGroup, &argument)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return &os.PathError{Op: "remove the quota group of a subvolume", Path: dir.Name(), Err: err}
}

// btrfsUse returns the size of a subvolume and its limit: 0 for none.
func btrfsUse(dir *os.File, id uint64) (used, limit uint64, err error) {
	info, err := btrfsItem(dir, btrfsQuotaInfo, id)
	if err != nil {
		return 0, 0, err
	}
	bounds, err := btrfsItem(dir, btrfsQuotaLimitKey, id)
	if err != nil {
		return 0, 0, err
	}
	if len(info) >= 16 {
		used = binary.LittleEndian.Uint64(info[8:])
	}
	if len(bounds) >= 16 && binary.LittleEndian.Uint64(bounds)&btrfsMaxReferenced != 0 {
		limit = binary.LittleEndian.Uint64(bounds[8:])
	}
	return used, limit, nil
}
