// Makes DuckDB forget a function, which no interface of its own for C does. DuckDB is called by the names
// that its library exports: those say what a function takes, so that one that takes something else is not
// found.

#include <cstdint>
#include <functional>
#include <string>

namespace {

// DuckDB's classes, of which only addresses are known here.
struct Context;
struct Catalog;
struct Schema;
struct Set;

// The type of an entry (duckdb::CatalogType), by which its set is found: scalar functions, aggregates and
// macros are in one, table functions in another.
enum class Type : uint8_t { TableFunction = 25, ScalarFunction = 26 };

}  // namespace

extern "C" {

// What is needed of DuckDB. Where it has names of a class of their own (`Identifier`), they are texts inside.
struct crosslane_catalog {
  void (*run_in_transaction)(Context *, const std::function<void()> &, bool);
  Catalog *(*system_catalog)(Context *);
  Schema *(*schema)(Catalog *, Context *, const std::string &);
  Set *(*set)(Schema *, Type);
  bool (*drop)(Set *, Context *, const std::string &, bool cascade, bool internal);
};

// Forgets all functions of a name; whether that could be done. It is done in the connection's transaction, if
// there is one.
bool crosslane_forget(const crosslane_catalog *duckdb, Context *context, const char *name, size_t length,
                      bool table) {
  try {
    const std::string wanted(name, length);
    const std::string main("main");
    const auto forget = [&] {
      auto *schema = duckdb->schema(duckdb->system_catalog(context), context, main);
      auto *set = duckdb->set(schema, table ? Type::TableFunction : Type::ScalarFunction);
      duckdb->drop(set, context, wanted, false, true);
    };
    duckdb->run_in_transaction(context, forget, true);
    return true;
  } catch (...) {
    return false;
  }
}
}
