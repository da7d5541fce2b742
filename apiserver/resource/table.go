package resource

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Column declares a column of a table. typ is "string", "integer", "number", "boolean" or "date".
func Column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// WideColumn declares a column that shows only with kubectl get -o wide.
func WideColumn(name, typ, description string) metav1.TableColumnDefinition {
	c := Column(name, typ, description)
	c.Priority = 1
	return c
}

// Name is the column that tables begin with.
func Name() metav1.TableColumnDefinition {
	c := Column("Name", "string", "Name of the object, unique within its namespace.")
	c.Format = "name"
	return c
}

// Age is the column of the time since creation; its cell is Since of the creation timestamp.
func Age() metav1.TableColumnDefinition {
	return Column("Age", "string", "Time since the object was created.")
}

// Since prints how long ago t was, the way kubectl users know it.
func Since(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// None is the text of an empty cell.
const None = "<none>"

// OrNone prints a text, or that there is none.
func OrNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

// FormatLabels prints labels in order, or that there are none.
func FormatLabels(set map[string]string) string { return OrNone(labels.Set(set).String()) }

// tableConvertor prints objects and lists as the tables that kubectl get requests.
type tableConvertor struct {
	columns []metav1.TableColumnDefinition
	row     func(obj runtime.Object, now time.Time) ([]any, error)
	now     func() time.Time
}

// Table prints objects of type T, as the Columns and Row of a Kind do.
func Table[T any](columns []metav1.TableColumnDefinition, row func(obj *T, now time.Time) []any) rest.TableConvertor {
	return &tableConvertor{columns: columns, now: time.Now,
		row: func(obj runtime.Object, now time.Time) ([]any, error) {
			o, ok := obj.(any).(*T)
			if !ok {
				return nil, fmt.Errorf("expected a %T, got a %T", new(T), obj)
			}
			return row(o, now), nil
		}}
}

// ConvertToTable implements rest.TableConvertor.
func (c *tableConvertor) ConvertToTable(
	_ context.Context, obj runtime.Object, options runtime.Object,
) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = c.columns
	}
	now := c.now()
	add := func(item runtime.Object) error {
		cells, err := c.row(item, now)
		if err != nil {
			return err
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: item}})
		return nil
	}
	if list, err := meta.ListAccessor(obj); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
		return table, meta.EachListItem(obj, add)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	table.ResourceVersion = m.GetResourceVersion()
	return table, add(obj)
}
