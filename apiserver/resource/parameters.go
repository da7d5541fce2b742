package resource

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddQueryParameters registers option types of subresources and lets them be read from a query
// string, field by field after their JSON names: strings, booleans, integers, times, pointers to
// them, and lists of strings or integers.
func AddQueryParameters(scheme *runtime.Scheme, gv schema.GroupVersion, options ...runtime.Object) error {
	scheme.AddKnownTypes(gv, options...)
	addInternal(scheme, gv, options...)
	for _, o := range options {
		convert := func(in, out any, _ conversion.Scope) error {
			return fromQuery(*in.(*url.Values), reflect.ValueOf(out).Elem())
		}
		if err := scheme.AddConversionFunc((*url.Values)(nil), o, convert); err != nil {
			return fmt.Errorf("query parameters of %T: %w", o, err)
		}
	}
	return nil
}

func fromQuery(values url.Values, out reflect.Value) error {
	t := out.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name := jsonName(f)
		given, ok := values[name]
		if name == "" || f.Anonymous || !ok || len(given) == 0 {
			continue
		}
		if err := setParameter(out.Field(i), given); err != nil {
			return fmt.Errorf("query parameter %s: %w", name, err)
		}
	}
	return nil
}

func setParameter(field reflect.Value, given []string) error {
	switch {
	case field.Type() == reflect.TypeFor[metav1.Time]():
		at, err := time.Parse(time.RFC3339, given[0])
		if err != nil {
			return fmt.Errorf("%q is not an RFC 3339 time", given[0])
		}
		field.Set(reflect.ValueOf(metav1.NewTime(at)))
		return nil
	case field.Kind() == reflect.Pointer:
		value := reflect.New(field.Type().Elem())
		if err := setParameter(value.Elem(), given); err != nil {
			return err
		}
		field.Set(value)
		return nil
	case field.Kind() == reflect.Slice:
		list := reflect.MakeSlice(field.Type(), len(given), len(given))
		for i, g := range given {
			if err := setParameter(list.Index(i), []string{g}); err != nil {
				return err
			}
		}
		field.Set(list)
		return nil
	}
	return setScalar(field, given[0])
}

func setScalar(field reflect.Value, given string) error {
	switch field.Kind() {
	case reflect.String:
		field.SetString(given)
	case reflect.Bool:
		// A parameter without a value, as in "?follow", is true.
		if given == "" {
			field.SetBool(true)
			return nil
		}
		b, err := strconv.ParseBool(given)
		if err != nil {
			return fmt.Errorf("%q is not a boolean", given)
		}
		field.SetBool(b)
	case reflect.Int32, reflect.Int64, reflect.Int:
		n, err := strconv.ParseInt(given, 10, field.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not an integer of %d bits", given, field.Type().Bits())
		}
		field.SetInt(n)
	default:
		return fmt.Errorf("a parameter cannot be a %s", field.Type())
	}
	return nil
}
