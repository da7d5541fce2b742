package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mutation is the object of a kind with one change.
type mutation struct {
	name   string
	object map[string]any
}

// mutations are the object itself, its variants, and one object for each thing that may be wrong
// with one of its fields.
func (k *kind) mutations() []mutation {
	out := []mutation{{"nothing", clone(k.object)}}
	for i, patch := range k.variants {
		object := clone(k.object)
		merge(object, patch)
		out = append(out,
			mutation{
				fmt.Sprintf("%s variant %d: %s", strings.Join(slices.Sorted(maps.Keys(patch)), ","), i, brief(patch)),
				object})
	}
	k.walk(clone(k.object), nil, func(path []any, what string, value any) {
		object := clone(k.object)
		put(object, path, value)
		out = append(out, mutation{pathString(path) + " " + what, object})
	})
	return out
}

func brief(patch map[string]any) string {
	const most = 150
	s := fmt.Sprint(patch)
	return s[:min(len(s), most)]
}

// merge applies a JSON merge patch.
func merge(object, patch map[string]any) {
	for key, value := range patch {
		from, ok := value.(map[string]any)
		into, both := object[key].(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case ok && both:
			merge(into, from)
		case ok:
			into = map[string]any{}
			merge(into, from)
			object[key] = into
		default:
			object[key] = value
		}
	}
}

// removed stands for a field that is taken away.
type removed struct{}

// walk calls add for each change of a value at a path, and of the values below it.
func (k *kind) walk(value any, path []any, add func(path []any, what string, value any)) {
	if len(path) == 1 && (path[0] == "apiVersion" || path[0] == "kind") {
		return
	}
	if len(path) > 0 {
		add(path, "removed", removed{})
	}
	switch v := value.(type) {
	case map[string]any:
		if len(path) > 0 {
			add(path, "empty", map[string]any{})
		}
		texts := len(v) > 0
		for _, key := range slices.Sorted(maps.Keys(v)) {
			_, is := v[key].(string)
			texts = texts && is
			if len(path) == 1 && path[0] == "metadata" && key == "namespace" {
				continue
			}
			k.walk(v[key], append(slices.Clone(path), key), add)
		}
		if texts {
			add(append(slices.Clone(path), "not a key!"), "added", "x")
			add(append(slices.Clone(path), "added"), "added with a bad value", "not a value!")
		}
	case []any:
		add(path, "empty", []any{})
		if len(v) > 0 {
			add(path, "first doubled", append([]any{v[0]}, v...))
			add(path, "hundredfold", slices.Repeat(v, 100))
		}
		for i := range v {
			k.walk(v[i], append(slices.Clone(path), i), add)
		}
	case string:
		add(path, "empty", "")
		add(path, "bad", "Not Valid!")
		add(path, "changed", v+"1")
		add(path, "in capitals", strings.ToUpper(v)+"X")
	case float64:
		add(path, "negative", -5)
		add(path, "zero", 0)
		add(path, "huge", 99999999)
	case bool:
		add(path, "turned", !v)
	}
}

func pathString(path []any) string {
	var b strings.Builder
	for _, p := range path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(p)
		}
	}
	return b.String()
}

// put sets the value at a path, or takes it away.
func put(object map[string]any, path []any, value any) {
	_, gone := value.(removed)
	var at any = object
	for i, p := range path[:len(path)-1] {
		if n, ok := p.(int); ok {
			at = at.([]any)[n]
			continue
		}
		m, key := at.(map[string]any), p.(string)
		// A list that loses an item is another list, which its parent must know.
		if n, ok := path[len(path)-1].(int); ok && gone && i == len(path)-2 {
			m[key] = slices.Delete(m[key].([]any), n, n+1)
			return
		}
		at = m[key]
	}
	switch last := path[len(path)-1].(type) {
	case int:
		if list := at.([]any); !gone {
			list[last] = value
		}
	case string:
		if m := at.(map[string]any); gone {
			delete(m, last)
		} else {
			m[last] = value
		}
	}
}
