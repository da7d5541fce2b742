package rawlist

import "k8s.io/apimachinery/pkg/labels"

const (
	metaLabels = 11<<3 | 2
	entryKey   = 1<<3 | 2
	entryValue = 2<<3 | 2
)

// storedLabels are the labels in the metadata of an object as they are stored. They are found on
// request: a selector needs one or two.
type storedLabels []byte

var _ labels.Labels = storedLabels(nil)

// StoredLabels returns the labels of an object that is stored as protobuf. It is false for bytes
// that are not that.
func StoredLabels(value []byte) (labels.Labels, bool) {
	_, message, _, _, ok := envelope(value)
	if !ok {
		return nil, false
	}
	tag, meta, end := field(message, 0)
	if end < 0 || tag != objectMetadata {
		return nil, false
	}
	for at := 0; at < len(meta); {
		tag, entry, next := field(meta, at)
		if next < 0 {
			return nil, false
		}
		if tag == metaLabels {
			if _, _, ok := mapEntry(entry); !ok {
				return nil, false
			}
		}
		at = next
	}
	return storedLabels(meta), true
}

// Labels returns the labels of marked bytes.
func (f *Format) Labels(value []byte) (labels.Labels, bool) { return f.labels(value) }

// mapEntry takes an entry of a map of strings apart.
func mapEntry(entry []byte) (key, value []byte, ok bool) {
	for at := 0; at < len(entry); {
		tag, data, next := field(entry, at)
		switch {
		case next < 0:
			return nil, nil, false
		case tag == entryKey:
			key = data
		case tag == entryValue:
			value = data
		}
		at = next
	}
	return key, value, true
}

// Lookup implements labels.Labels. Of entries with the same key the last one counts, as everywhere
// in protobuf.
func (l storedLabels) Lookup(label string) (value string, exists bool) {
	for at := 0; at < len(l); {
		tag, entry, next := field(l, at)
		if next < 0 {
			break
		}
		if tag == metaLabels {
			if key, v, _ := mapEntry(entry); string(key) == label {
				value, exists = string(v), true
			}
		}
		at = next
	}
	return value, exists
}

// Has implements labels.Labels.
func (l storedLabels) Has(label string) bool {
	_, exists := l.Lookup(label)
	return exists
}

// Get implements labels.Labels.
func (l storedLabels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}
