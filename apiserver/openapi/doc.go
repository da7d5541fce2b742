// Package openapi describes the API in OpenAPI v2 and v3, for kubectl explain and all other readers
// of schemas.
//
// Documents are built on demand, one for each group and version in v3, and only their encoded
// form is kept for a while. The schemas of the built-in kinds are upstream's: package schemas has
// them, enumerations and defaults included. Custom resources are described from their
// definitions, which are read anew for each request. The documents of extension API servers are
// read once a minute at most.
//
// In a binary without schemas, one that was built without `make`, they are built from the Go types
// themselves: fields and their types by reflection, descriptions from SwaggerDoc, names from
// OpenAPIModelName, patch strategies from struct tags, and how lists merge from the schema that
// client-go carries for server-side apply. Enumerations and defaults are missing then.
package openapi
