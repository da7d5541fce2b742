package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/barque/barque/apiserver/fieldindex"
	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/raftstore"
)

// indexConfig describes this resource to the index of a field.
func (s *Store) indexConfig(field string, value func(runtime.Object) string) (fieldindex.Config, error) {
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return fieldindex.Config{}, err
	}
	return fieldindex.Config{
		Field:  field,
		Prefix: prefix,
		View: func(ctx context.Context) (raftstore.View, error) {
			return s.view(ctx, "list", raftstore.ViewOptions{Stale: true})
		},
		Value: func(ctx context.Context, of objectcache.Stored, keep bool) (string, bool) {
			return s.fieldValue(ctx, field, value, of, keep)
		},
		Follow:  s.backend.Watch,
		History: s.backend.Watch,
		Logger:  s.log,
	}, nil
}

// fieldValue returns the value of an object's field, from its bytes where it is found there. With
// keep, an object that is decoded for that is kept for others.
func (s *Store) fieldValue(
	ctx context.Context, field string, value func(runtime.Object) string, of objectcache.Stored, keep bool,
) (string, bool) {
	if s.marked(of) {
		if found, ok := s.format.Field(field, of.Value); ok {
			return found, true
		}
	}
	if keep {
		o, err := s.shared(ctx, of)
		if err != nil {
			return "", false
		}
		return value(o.Shared()), true
	}
	if o := s.peek(of); o != nil {
		return value(o.Shared()), true
	}
	obj, err := s.decodeStored(ctx, of)
	if err != nil {
		return "", false
	}
	return value(obj), true
}
