package resource

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Alias is a second wire form of a Kind: another version or group in which the same stored objects
// are served. Make one with AliasOf.
type Alias struct {
	gv     schema.GroupVersion
	object runtime.Object
	list   runtime.Object
	labels map[string]string
	// toHub and fromHub convert single objects between the alias's type and the Kind's.
	toHub, fromHub conversion.ConversionFunc
}

// AliasOf declares that the objects of a Kind[H] are also served as type A in gv, with list as the
// empty list of A. The conversion functions fill a zero out; they may share memory with in, which
// does not change afterwards. fieldLabels maps field labels of the alias to those of the Kind,
// where they differ.
func AliasOf[H, A any](
	gv schema.GroupVersion, list runtime.Object, toHub func(in *A, out *H) error, fromHub func(in *H, out *A) error,
	fieldLabels map[string]string,
) Alias {
	return Alias{
		gv:     gv,
		object: object(new(A)),
		list:   list,
		labels: fieldLabels,
		toHub: func(in, out any, _ conversion.Scope) error {
			return toHub(in.(*A), out.(*H))
		},
		fromHub: func(in, out any, _ conversion.Scope) error {
			return fromHub(in.(*H), out.(*A))
		},
	}
}

func (a *Alias) addToScheme(scheme *runtime.Scheme, hub, hubList runtime.Object) error {
	scheme.AddKnownTypes(a.gv, a.object, a.list)
	addInternal(scheme, a.gv, hub, hubList)
	for _, c := range []struct {
		in, out runtime.Object
		fn      conversion.ConversionFunc
	}{
		{a.object, hub, a.toHub},
		{hub, a.object, a.fromHub},
		{a.list, hubList, convertList(a.toHub)},
		{hubList, a.list, convertList(a.fromHub)},
	} {
		if err := scheme.AddConversionFunc(c.in, c.out, c.fn); err != nil {
			return fmt.Errorf("conversion of %T to %T: %w", c.in, c.out, err)
		}
	}
	return nil
}

// convertList converts a list item by item.
func convertList(item conversion.ConversionFunc) conversion.ConversionFunc {
	return func(in, out any, scope conversion.Scope) error {
		from, err := meta.ListAccessor(in)
		if err != nil {
			return err
		}
		to, err := meta.ListAccessor(out)
		if err != nil {
			return err
		}
		to.SetResourceVersion(from.GetResourceVersion())
		to.SetContinue(from.GetContinue())
		to.SetRemainingItemCount(from.GetRemainingItemCount())

		src := reflect.ValueOf(in).Elem().FieldByName("Items")
		dst := reflect.ValueOf(out).Elem().FieldByName("Items")
		items := reflect.MakeSlice(dst.Type(), src.Len(), src.Len())
		for i := range src.Len() {
			if err := item(src.Index(i).Addr().Interface(), items.Index(i).Addr().Interface(), scope); err != nil {
				return err
			}
		}
		dst.Set(items)
		return nil
	}
}
