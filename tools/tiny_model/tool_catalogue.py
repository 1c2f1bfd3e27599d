"""The synthetic tool catalogue: names, typed parameters, phrasings, results and answers.

Every text in this file was written for this project. ``{name}`` in a phrasing is
a parameter of the call; ``{r.key}`` in an answer is a field of the tool's result.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Param:
    """One typed parameter; ``kind`` names the value generator in ``value_pools``."""

    name: str
    type: str
    kind: str
    enum: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """One tool with its phrasings, the fields of its result and answers over them."""

    name: str
    description: str
    params: tuple[Param, ...]
    phrasings: tuple[str, ...]
    result: dict[str, str] = field(default_factory=dict)
    answers: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def s(name: str, kind: str | None = None) -> Param:
    """A string parameter."""
    return Param(name, "string", kind or name)


def i(name: str, low: int, high: int) -> Param:
    """An integer parameter in a range."""
    return Param(name, "integer", f"int:{low}:{high}")


def n(name: str, kind: str) -> Param:
    """A number parameter."""
    return Param(name, "number", kind)


def e(name: str, *options: str) -> Param:
    """A string parameter with an enumeration."""
    return Param(name, "string", "enum", options)


def arr(name: str, kind: str) -> Param:
    """An array-of-strings parameter."""
    return Param(name, "array", f"list:{kind}")


PARAM_ALIASES: dict[str, tuple[str, ...]] = {
    "city": ("location", "town", "place"),
    "date": ("day", "on_date"),
    "time": ("at", "start_time"),
    "query": ("q", "text", "search"),
    "amount": ("value", "total"),
    "name": ("full_name", "person"),
    "email": ("address", "recipient"),
    "path": ("file", "filename"),
    "room": ("area", "zone"),
    "item": ("product", "article"),
    "quantity": ("count", "units"),
    "minutes": ("duration", "length"),
    "title": ("label", "subject"),
    "order_id": ("order", "reference"),
}

TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        "Get the weather for a city.",
        (s("city"), e("unit", "celsius", "fahrenheit")),
        (
            "What's the weather in {city}?",
            "How is the weather in {city} right now?",
            "Tell me the weather for {city} in {unit}.",
            "Is it cold in {city}? Use {unit}.",
            "Weather in {city}, {unit} please",
        ),
        {"temperature": "int:-9:38", "sky": "sky"},
        (
            "It is {r.temperature} degrees and {r.sky} in {city}.",
            "In {city} it is {r.sky} with {r.temperature} degrees.",
        ),
        ("weather_now", "fetch_weather"),
    ),
    Tool(
        "get_forecast",
        "Forecast for the next days.",
        (s("city"), i("days", 2, 14)),
        (
            "Give me a {days} day forecast for {city}.",
            "What will the weather be in {city} over the next {days} days?",
            "Forecast {city} for {days} days",
            "I am going to {city} for {days} days, what weather should I expect?",
        ),
        {"outlook": "sky", "high": "int:5:38", "low": "int:-9:4"},
        ("The next {days} days in {city} look {r.outlook}, between {r.low} and {r.high} degrees.",),
    ),
    Tool(
        "book_flight",
        "Book a flight between two cities.",
        (s("origin", "city"), s("destination", "city"), s("date"), i("passengers", 1, 6)),
        (
            "Book a flight from {origin} to {destination} on {date}.",
            "I need to fly from {origin} to {destination} on {date} with {passengers} people.",
            "Get me a flight to {destination} from {origin}, leaving {date}.",
            "Fly {passengers} passengers from {origin} to {destination} on {date}",
        ),
        {"flight": "code", "price": "int:60:900"},
        ("Flight {r.flight} from {origin} to {destination} is booked for {r.price} euros.",),
        ("reserve_flight",),
    ),
    Tool(
        "book_hotel",
        "Reserve a hotel room.",
        (s("city"), s("date"), i("nights", 1, 14)),
        (
            "Book a hotel in {city} for {nights} nights from {date}.",
            "I need a room in {city} on {date} for {nights} nights.",
            "Reserve {nights} nights in {city} starting {date}.",
            "Find me a hotel in {city}, check-in {date}, {nights} nights",
        ),
        {"hotel": "hotel", "confirmation": "code"},
        ("Your room at {r.hotel} in {city} is booked, confirmation {r.confirmation}.",),
        ("reserve_hotel",),
    ),
    Tool(
        "search_trains",
        "Find trains between two cities.",
        (s("origin", "city"), s("destination", "city"), s("time")),
        (
            "Which trains go from {origin} to {destination}?",
            "Find a train from {origin} to {destination} after {time}.",
            "I want to take the train to {destination} from {origin} at {time}.",
            "Trains {origin} to {destination}",
        ),
        {"departure": "time", "platform": "int:1:24"},
        ("The next train to {destination} leaves at {r.departure} from platform {r.platform}.",),
    ),
    Tool(
        "create_event",
        "Create a calendar event.",
        (s("title", "event"), s("date"), s("time")),
        (
            "Put {title} in my calendar on {date} at {time}.",
            "Schedule {title} for {date} at {time}.",
            "Add an event called {title} on {date}.",
            "Create a calendar entry: {title}, {date}, {time}",
            "I have {title} on {date} at {time}, please save it.",
        ),
        {"status": "ok_word", "event_id": "int:100:9999"},
        ("Done, {title} is in your calendar on {date}.", "I saved {title} as event {r.event_id}."),
        ("add_event", "new_event"),
    ),
    Tool(
        "cancel_event",
        "Cancel a calendar event.",
        (s("title", "event"), s("date")),
        (
            "Cancel {title} on {date}.",
            "Remove {title} from my calendar.",
            "Please delete {title} on {date}.",
            "I can't make {title} on {date}, cancel it.",
        ),
        {"cancelled": "bool"},
        ("{title} is cancelled.",),
        ("delete_event",),
    ),
    Tool(
        "set_reminder",
        "Set a reminder.",
        (s("text", "task"), s("time"), s("date")),
        (
            "Remind me to {text} at {time}.",
            "Set a reminder to {text} on {date} at {time}.",
            "At {time} remind me to {text}.",
            "Don't let me forget to {text} on {date}.",
            "Reminder: {text}, {time}",
        ),
        {"reminder_id": "int:10:999"},
        ("I will remind you to {text}.",),
        ("add_reminder",),
    ),
    Tool(
        "set_alarm",
        "Set an alarm clock.",
        (s("time"), e("repeat", "daily", "weekdays", "weekends")),
        (
            "Wake me at {time}.",
            "Set an alarm for {time}.",
            "Set a {repeat} alarm at {time}.",
            "Alarm at {time}, {repeat}",
            "I must get up at {time}.",
        ),
        {"next": "time"},
        ("The alarm is set for {time}.",),
    ),
    Tool(
        "start_timer",
        "Start a countdown timer.",
        (i("minutes", 1, 180), s("title", "dish")),
        (
            "Start a timer for {minutes} minutes.",
            "Set a {minutes} minute timer.",
            "Set a timer for {minutes} minutes for the {title}.",
            "The {title} needs {minutes} minutes, start a timer.",
        ),
        {"running": "bool"},
        ("The timer runs for {minutes} minutes.",),
    ),
    Tool(
        "send_email",
        "Send an e-mail.",
        (s("email"), s("subject"), s("body", "message")),
        (
            "Send an email to {email} with subject {subject}: {body}",
            "Write to {email} about {subject} saying {body}",
            "Email {email}, subject {subject}, text: {body}",
            "Mail {email}: {body}",
        ),
        {"message_id": "code"},
        ("The mail to {email} is sent.", "Sent to {email} as {r.message_id}."),
        ("mail_send",),
    ),
    Tool(
        "send_message",
        "Send a text message to a person.",
        (s("name", "first"), s("message")),
        (
            "Text {name}: {message}",
            "Tell {name} {message}",
            "Send {name} a message saying {message}",
            "Message {name} that {message}",
        ),
        {"delivered": "bool"},
        ("{name} got your message.",),
        ("send_text",),
    ),
    Tool(
        "call_contact",
        "Call a person on the phone.",
        (s("name", "person"),),
        (
            "Call {name}.",
            "Phone {name} please.",
            "Can you ring {name}?",
            "I want to talk to {name}, call now.",
        ),
        {"status": "call_status"},
        ("The call to {name} is {r.status}.",),
    ),
    Tool(
        "add_contact",
        "Store a new contact.",
        (s("name", "person"), s("phone"), s("email")),
        (
            "Save {name} with number {phone}.",
            "Add {name} to my contacts, phone {phone}, email {email}.",
            "New contact {name}, {phone}.",
            "Store {name}, mail {email}.",
        ),
        {"contact_id": "int:1:500"},
        ("{name} is in your contacts now.",),
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money.",
        (n("amount", "money"), s("source", "currency"), s("target", "currency")),
        (
            "Convert {amount} {source} to {target}.",
            "How much is {amount} {source} in {target}?",
            "What are {amount} {source} worth in {target}?",
            "{amount} {source} in {target}?",
        ),
        {"result": "money", "rate": "rate"},
        ("{amount} {source} are {r.result} {target}.",),
        ("exchange_money",),
    ),
    Tool(
        "get_stock_price",
        "Look up a share price.",
        (s("symbol", "ticker"), s("date")),
        (
            "What is the price of {symbol}?",
            "How much is one share of {symbol}?",
            "Price of {symbol} on {date}",
            "Where did {symbol} close on {date}?",
        ),
        {"price": "money"},
        ("{symbol} is at {r.price}.",),
        ("stock_quote",),
    ),
    Tool(
        "transfer_money",
        "Transfer money to a person.",
        (s("name", "person"), n("amount", "money"), s("currency")),
        (
            "Send {amount} {currency} to {name}.",
            "Pay {name} {amount} {currency}.",
            "Transfer {amount} {currency} to {name} please.",
            "I owe {name} {amount} {currency}, pay it.",
        ),
        {"reference": "code"},
        ("{amount} {currency} went to {name}, reference {r.reference}.",),
    ),
    Tool(
        "log_expense",
        "Record an expense.",
        (n("amount", "money"), e("category", "food", "travel", "rent", "books", "clothes")),
        (
            "I spent {amount} on {category}.",
            "Log {amount} for {category}.",
            "Add an expense of {amount}, category {category}.",
            "Record {amount} under {category}",
        ),
        {"month_total": "money"},
        ("Saved. You have spent {r.month_total} this month.",),
    ),
    Tool(
        "track_order",
        "Track an order.",
        (s("order_id", "code"),),
        (
            "Where is order {order_id}?",
            "Track my order {order_id}.",
            "Has {order_id} been sent?",
            "What is the status of order {order_id}?",
        ),
        {"status": "order_status", "eta": "date"},
        ("Order {order_id} is {r.status} and should arrive on {r.eta}.",),
        ("order_status",),
    ),
    Tool(
        "cancel_order",
        "Cancel an order.",
        (s("order_id", "code"), e("reason", "late", "damaged", "mistake")),
        (
            "Cancel order {order_id}.",
            "Please cancel {order_id}, it was a {reason}.",
            "I don't want order {order_id} any more, reason {reason}.",
        ),
        {"refund": "money"},
        ("Order {order_id} is cancelled, you get {r.refund} back.",),
    ),
    Tool(
        "add_to_cart",
        "Put a product in the cart.",
        (s("item", "product"), i("quantity", 1, 20)),
        (
            "Add {quantity} {item} to my cart.",
            "Put {item} in the cart.",
            "I want to buy {quantity} {item}.",
            "Cart: {item}, quantity {quantity}",
        ),
        {"items": "int:1:30", "total": "money"},
        ("Your cart holds {r.items} items for {r.total}.",),
    ),
    Tool(
        "search_products",
        "Search the shop.",
        (
            s("query", "product"),
            n("max_price", "int:10:500"),
            e("sort", "price", "rating", "newest"),
        ),
        (
            "Find {query} under {max_price}.",
            "Search for {query}.",
            "Show me {query} below {max_price}, sorted by {sort}.",
            "I am looking for {query}, sort by {sort}.",
        ),
        {"hits": "int:0:90", "best": "hotel"},
        ("I found {r.hits} results for {query}.",),
        ("find_products",),
    ),
    Tool(
        "check_stock",
        "Check how many pieces are in stock.",
        (s("item", "product"), s("city")),
        (
            "Do you have {item} in {city}?",
            "Is {item} in stock?",
            "How many {item} are left in the {city} store?",
            "Check stock of {item} in {city}",
        ),
        {"stock": "int:0:120"},
        ("There are {r.stock} {item} in stock.",),
    ),
    Tool(
        "make_list",
        "Create a list of items.",
        (s("title", "list_name"), arr("items", "grocery")),
        (
            "Make a {title} list with {items}.",
            "Create a list called {title}: {items}",
            "New {title} list: {items}",
            "Put {items} on my {title} list.",
        ),
        {"saved": "bool"},
        ("The {title} list is saved.",),
        ("create_list",),
    ),
    Tool(
        "order_food",
        "Order food from a restaurant.",
        (arr("dishes", "dish"), s("address", "street")),
        (
            "Order {dishes} to {address}.",
            "I would like {dishes}.",
            "Get {dishes} delivered to {address}.",
            "Bring {dishes} to {address} please.",
        ),
        {"wait": "int:15:70"},
        ("Your food arrives in {r.wait} minutes.",),
    ),
    Tool(
        "book_table",
        "Reserve a table at a restaurant.",
        (s("restaurant", "hotel"), s("date"), s("time"), i("people", 2, 12)),
        (
            "Book a table for {people} at {restaurant} on {date} at {time}.",
            "Reserve a table at {restaurant} for {people} people, {date}, {time}.",
            "Table for {people} at {restaurant} on {date}",
        ),
        {"confirmation": "code"},
        ("Your table at {restaurant} is booked, confirmation {r.confirmation}.",),
    ),
    Tool(
        "find_recipe",
        "Find a recipe.",
        (s("dish"), i("servings", 1, 12)),
        (
            "How do I cook {dish}?",
            "Find a {dish} recipe for {servings} people.",
            "Recipe for {dish}",
            "I want to make {dish} for {servings}.",
        ),
        {"minutes": "int:10:120", "steps": "int:3:12"},
        ("This {dish} takes {r.minutes} minutes in {r.steps} steps.",),
    ),
    Tool(
        "play_music",
        "Play music.",
        (s("artist", "artist"), i("volume", 5, 100)),
        (
            "Play {artist}.",
            "Put on some {artist}.",
            "Play {artist} at volume {volume}.",
            "I want to hear {artist} at {volume} percent.",
        ),
        {"playing": "bool"},
        ("Now playing {artist}.",),
        ("start_music",),
    ),
    Tool(
        "set_temperature",
        "Set the heating of a room.",
        (s("room"), n("degrees", "degrees")),
        (
            "Set the {room} to {degrees} degrees.",
            "Heat the {room} to {degrees}.",
            "Make it {degrees} degrees in the {room}.",
            "{room} heating to {degrees}",
        ),
        {"current": "degrees"},
        ("The {room} is at {r.current} and will go to {degrees} degrees.",),
    ),
    Tool(
        "switch_light",
        "Switch a light.",
        (s("room"), e("state", "on", "off")),
        (
            "Turn {state} the light in the {room}.",
            "Turn the {room} light {state}.",
            "Lights {state} in the {room}",
            "Switch {state} the {room} lamp please.",
        ),
        {"ok": "bool"},
        ("The {room} light is {state}.",),
        ("light_switch",),
    ),
    Tool(
        "set_brightness",
        "Set the brightness of a lamp.",
        (s("room"), i("percent", 1, 100), s("color")),
        (
            "Dim the {room} to {percent} percent.",
            "Set the {room} lamp to {percent}%.",
            "Make the {room} {color} at {percent} percent.",
            "{room} light {color}, {percent}%",
        ),
        {"ok": "bool"},
        ("The {room} lamp is at {percent} percent.",),
    ),
    Tool(
        "lock_door",
        "Lock or unlock a door.",
        (s("door", "door"), e("action", "lock", "unlock")),
        (
            "Please {action} the {door} door.",
            "{action} the {door} door",
            "Can you {action} the {door} door?",
        ),
        {"state": "ok_word"},
        ("The {door} door: {action} done.",),
    ),
    Tool(
        "translate_text",
        "Translate a text.",
        (s("text", "message"), s("target", "language")),
        (
            "Translate to {target}: {text}",
            "How do you say {text} in {target}?",
            "Put this into {target}: {text}",
            "What is {text} in {target}?",
        ),
        {"quality": "rate"},
        ("Here is the {target} text.",),
        ("translate",),
    ),
    Tool(
        "search_web",
        "Search the web.",
        (s("query", "topic"), i("limit", 1, 20)),
        (
            "Search the web for {query}.",
            "Look up {query}.",
            "Find {limit} pages about {query}.",
            "What can you find online about {query}?",
            "Google {query}, {limit} results",
        ),
        {"found": "int:0:900"},
        ("I found {r.found} pages about {query}.",),
        ("web_search",),
    ),
    Tool(
        "read_file",
        "Read a file.",
        (s("path"), i("lines", 5, 400)),
        (
            "Open {path}.",
            "Show me {path}.",
            "Read the first {lines} lines of {path}.",
            "What is in {path}?",
        ),
        {"size": "int:20:9000"},
        ("The file {path} has {r.size} bytes.",),
        ("open_file",),
    ),
    Tool(
        "write_file",
        "Write text to a file.",
        (s("path"), s("content", "message")),
        (
            "Write {content} to {path}.",
            "Save this to {path}: {content}",
            "Create {path} with the text {content}",
            "Put {content} into {path}",
        ),
        {"written": "int:5:200"},
        ("I wrote {r.written} bytes to {path}.",),
        ("save_file",),
    ),
    Tool(
        "list_directory",
        "List the files in a folder.",
        (s("path", "folder"), e("order", "name", "size", "date")),
        (
            "What files are in {path}?",
            "List {path}.",
            "List {path} by {order}.",
            "Show the folder {path} ordered by {order}.",
        ),
        {"files": "int:0:80"},
        ("There are {r.files} files in {path}.",),
        ("list_files",),
    ),
    Tool(
        "run_command",
        "Run a shell command.",
        (s("command", "command"), i("timeout", 5, 600)),
        (
            "Run {command}.",
            "Execute {command} please.",
            "Run {command} with a timeout of {timeout} seconds.",
            "Start {command}, at most {timeout} seconds",
        ),
        {"exit_code": "int:0:2"},
        ("The command ended with code {r.exit_code}.",),
        ("shell",),
    ),
    Tool(
        "query_database",
        "Select rows from a table.",
        (s("table", "table"), s("column", "column"), i("limit", 1, 100)),
        (
            "Show {limit} rows of {table}.",
            "Get the {column} column of {table}.",
            "Select {column} from {table}, limit {limit}.",
            "List {column} in {table}, {limit} rows",
        ),
        {"rows": "int:0:100"},
        ("The query gave {r.rows} rows.",),
    ),
    Tool(
        "create_ticket",
        "Open a support ticket.",
        (s("title", "issue"), e("priority", "low", "medium", "high")),
        (
            "Open a ticket: {title}, priority {priority}.",
            "Create a {priority} priority ticket for {title}.",
            "File an issue: {title}",
            "Report that {title}, {priority}",
        ),
        {"ticket": "code"},
        ("Ticket {r.ticket} is open.",),
        ("open_ticket",),
    ),
    Tool(
        "get_user",
        "Look up a user account.",
        (i("user_id", 1, 99999),),
        (
            "Who is user {user_id}?",
            "Look up user {user_id}.",
            "Show me the account {user_id}.",
            "Get the profile for user number {user_id}",
        ),
        {"name": "person", "age": "int:18:90"},
        ("User {user_id} is {r.name}, {r.age} years old.",),
    ),
    Tool(
        "calculate",
        "Evaluate an arithmetic expression.",
        (s("expression", "expression"),),
        (
            "What is {expression}?",
            "Calculate {expression}.",
            "Compute {expression} for me.",
            "How much is {expression}?",
        ),
        {"value": "int:1:9999"},
        ("The result is {r.value}.",),
    ),
    Tool(
        "convert_units",
        "Convert between units.",
        (n("value", "quantity"), s("source", "unit"), s("target", "unit")),
        (
            "Convert {value} {source} to {target}.",
            "How many {target} are {value} {source}?",
            "{value} {source} in {target}",
        ),
        {"result": "money"},
        ("{value} {source} are {r.result} {target}.",),
    ),
    Tool(
        "find_route",
        "Find a route between two places.",
        (s("start", "city"), s("end", "city"), e("mode", "car", "bike", "bus", "walk")),
        (
            "How do I get from {start} to {end}?",
            "Find a {mode} route from {start} to {end}.",
            "Route from {start} to {end} by {mode}.",
            "Directions {start} to {end}, {mode}",
        ),
        {"km": "int:2:900", "minutes": "int:10:700"},
        ("It is {r.km} km from {start} to {end}, about {r.minutes} minutes.",),
        ("get_directions",),
    ),
    Tool(
        "log_workout",
        "Record a workout.",
        (s("sport", "sport"), i("minutes", 5, 180), n("km", "distance")),
        (
            "I did {minutes} minutes of {sport}.",
            "Log {sport}, {minutes} minutes.",
            "Log {km} km of {sport} in {minutes} minutes.",
            "Today: {sport} for {minutes} minutes, {km} km",
        ),
        {"calories": "int:40:900"},
        ("Well done, that was {r.calories} calories.",),
    ),
    Tool(
        "add_note",
        "Save a note.",
        (s("text", "message"), arr("tags", "tag")),
        (
            "Note: {text}",
            "Write down: {text}",
            "Save a note saying {text}, tags {tags}",
            "Note with tags {tags}: {text}",
        ),
        {"note_id": "int:1:999"},
        ("Noted.", "Saved as note {r.note_id}."),
        ("save_note",),
    ),
)
