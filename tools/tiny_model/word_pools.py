"""The words that the value generators draw from; their order fixes the generated data."""

from __future__ import annotations


def _pool(text: str) -> tuple[str, ...]:
    """The comma-separated entries of ``text``."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


CITIES = _pool("""
    Paris, London, Berlin, Madrid, Rome, Vienna, Prague, Lisbon, Dublin, Oslo, Stockholm,
    Helsinki, Warsaw, Athens, Budapest, Zurich, Geneva, Milan, Naples, Munich, Hamburg, Cologne,
    Lyon, Nice, Porto, Seville, Valencia, Bergen, Tokyo, Osaka, Kyoto, Seoul, Beijing, Shanghai,
    Delhi, Mumbai, Bangkok, Hanoi, Jakarta, Manila, Singapore, Sydney, Melbourne, Perth,
    Auckland, Toronto, Montreal, Vancouver, Chicago, Boston, Seattle, Denver, Dallas, Houston,
    Miami, Atlanta, Phoenix, Portland, Lima, Bogota, Quito, Santiago, Havana, Cairo, Tunis,
    Lagos, Nairobi, Accra, Dakar, Dubai, Doha, Istanbul, Ankara, Krakow, Riga, Tallinn, Vilnius,
    Bratislava, Ljubljana, Zagreb, Sofia, New York, San Francisco, Los Angeles, Mexico City,
    Buenos Aires, Cape Town, Hong Kong, Kuala Lumpur, Salt Lake City
""")
FIRST = _pool("""
    Anna, Ben, Clara, David, Emma, Felix, Greta, Henry, Ida, Jonas, Karin, Leo, Maria, Nora,
    Oscar, Paul, Rosa, Simon, Tina, Victor, Wendy, Yusuf, Zoe, Alice, Bruno, Carlos, Diana,
    Erik, Fatima, Grace, Hugo, Ines, Jack, Kira, Lena, Marco, Nina, Omar, Petra, Quinn, Rafael,
    Sara, Tom, Uma, Vera, Walter, Xenia, Amir, Bella, Chloe, Dario, Elena, Frank, Hana, Ivan,
    Julia, Kofi, Lucas, Mila, Noah
""")
LAST = _pool("""
    Smith, Jones, Brown, Taylor, Miller, Davis, Wilson, Moore, Clark, Lewis, Young, King,
    Wright, Hill, Green, Baker, Adams, Nelson, Carter, Mitchell, Parker, Evans, Turner, Collins,
    Morris, Rogers, Reed, Cook, Bell, Murphy, Bailey, Cooper, Richards, Ward, Fischer, Weber,
    Wagner, Becker, Schulz, Rossi, Ferrari, Garcia, Lopez, Martin, Silva, Santos, Novak, Horvat,
    Nagy, Kim, Park, Chen, Wang, Singh, Patel, Khan, Tanaka, Sato, Larsen
""")
COUNTRIES: dict[str, str] = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Cuba": "Havana",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Colombia": "Bogota",
    "Turkey": "Ankara",
    "Croatia": "Zagreb",
    "Latvia": "Riga",
    "Estonia": "Tallinn",
    "Lithuania": "Vilnius",
    "Slovenia": "Ljubljana",
    "Bulgaria": "Sofia",
    "Ghana": "Accra",
    "Senegal": "Dakar",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
}
CURRENCIES = _pool("EUR, USD, GBP, JPY, CHF, SEK, NOK, CAD, AUD, INR, PLN, CZK")
TICKERS = _pool("""
    AAPL, MSFT, GOOG, AMZN, NVDA, TSLA, META, INTC, AMD, ORCL, IBM, SAP, NFLX, ADBE, CSCO, QCOM
""")
LANGUAGES = _pool("""
    French, German, Spanish, Italian, Portuguese, Dutch, Swedish, Polish, Japanese, Korean,
    Chinese, Arabic, Hindi, Turkish
""")
ROOMS = _pool("""
    kitchen, bedroom, living room, bathroom, office, hallway, garage, garden, attic, cellar,
    nursery, library
""")
PRODUCTS = _pool("""
    laptop, phone, headphones, keyboard, monitor, desk lamp, office chair, backpack, water
    bottle, running shoes, winter jacket, coffee machine, toaster, bike helmet, tent, sleeping
    bag, camera, tripod, notebook, fountain pen, wall clock, yoga mat, guitar, drum kit, puzzle,
    board game, novel, cook book, umbrella, suitcase
""")
GROCERIES = _pool("""
    milk, eggs, bread, butter, cheese, rice, pasta, tomatoes, onions, apples, bananas, carrots,
    coffee, tea, sugar, salt, flour, yogurt, honey, lemons, beans, spinach, garlic, olives
""")
DISHES = _pool("""
    pizza, pasta, soup, risotto, curry, salad, sushi, ramen, tacos, burger, lasagna, pancakes,
    chili, stew, omelette, dumplings, falafel, paella, goulash, noodles
""")
ARTISTS = _pool("""
    jazz, classical music, rock, the Beatles, Mozart, Bach, Queen, Abba, blues, techno, folk
    songs, Vivaldi, salsa, opera
""")
EVENTS = _pool("""
    team meeting, dentist, lunch with {first}, project review, birthday of {first}, yoga class,
    call with {first}, budget talk, piano lesson, parent evening, code review, dinner with
    {first}, car service, interview with {last}, book club, doctor visit
""")
TASKS = _pool("""
    water the plants, call {first}, pay the rent, buy {grocery}, feed the cat, send the report,
    book the {product}, take out the trash, pick up {first}, clean the {room}, charge the
    {product}, return the {product}, renew the passport, write to {last}, back up the laptop
""")
SUBJECTS = _pool("""
    the budget, our trip, the invoice, the meeting, your order, the contract, new ideas, the
    schedule, holiday plans, the report, test results, the party, room booking, the launch
""")
MESSAGES = _pool("""
    I will be {int} minutes late, the meeting moved to {time}, please bring {grocery}, thank you
    for the {product}, see you in {city}, the code is {int}, dinner is at {time}, we need {int}
    more {grocery}, {first} is coming too, call me tomorrow, the {product} arrived, I am in the
    {room}, happy birthday {first}, the train leaves at {time}, do not forget the {product},
    good morning, where is the {room}, I like {dish}, we fly to {city}
""")
TOPICS = _pool("""
    history of {city}, best {dish} in {city}, how to repair a {product}, {language} grammar,
    cheap {product}, {city} museums, python decorators, solar energy, black holes, electric
    cars, {dish} recipes, learn {language}, old maps of {city}, tea and coffee, quantum
    computers
""")
ISSUES = _pool("""
    the {product} is broken, login does not work, the {room} lamp flickers, printer offline,
    payment failed, page {int} is missing, app crashes on start, the {product} is too loud,
    wrong address on the invoice, no heating in the {room}
""")
COMMANDS = _pool("""
    ls -l, git status, git pull, make test, pytest -q, df -h, uptime, python main.py, cargo
    build, npm install, docker ps, make clean, python -m http.server {int}, git log -n {int},
    tail -n {int} app.log, sleep {int}
""")
TABLES = _pool("""
    users, orders, products, invoices, events, sessions, payments, customers, tickets, books
""")
COLUMNS = _pool("name, email, price, created, status, total, city, age, title, score")
SPORTS = _pool("running, cycling, swimming, rowing, hiking, skating, walking, skiing")
UNITS = _pool("""
    km, miles, meters, feet, inches, kg, pounds, grams, liters, gallons, hours, seconds
""")
FOLDERS = _pool("""
    src, docs, data, tests, logs, home, tmp, assets, config, scripts, reports, images
""")
STEMS = _pool("""
    main, notes, report, config, index, readme, users, budget, test, plan, draft, results,
    summary, todo
""")
SUFFIXES = _pool("txt, py, md, json, csv, log, toml, html")
COLORS = _pool("red, green, blue, yellow, orange, purple, white, pink")
DOORS = _pool("front, back, garage, cellar, garden, balcony")
STREETS = _pool("""
    Main Street, Oak Avenue, Mill Road, Station Road, Park Lane, Church Street, River Way, High
    Street, Lake Drive, Forest Path
""")
HOTELS = _pool("""
    Blue Moon, Golden Lion, Sea View, Grand Plaza, Old Mill, Red Fox, Green Garden, Silver Star,
    Royal Oak, White Swan, Black Horse
""")
LIST_NAMES = _pool("shopping, party, weekend, camping, breakfast, packing, garden, office")
TAGS = _pool("work, home, urgent, ideas, family, travel, money, health")
MONTHS = _pool("""
    January, February, March, April, May, June, July, August, September, October, November,
    December
""")
DOMAINS = _pool("mail.com, example.org, post.net, work.io, uni.edu")
SIMPLE: dict[str, tuple[str, ...]] = {
    "city": CITIES,
    "first": FIRST,
    "last": LAST,
    "currency": CURRENCIES,
    "ticker": TICKERS,
    "language": LANGUAGES,
    "room": ROOMS,
    "product": PRODUCTS,
    "grocery": GROCERIES,
    "dish": DISHES,
    "artist": ARTISTS,
    "subject": SUBJECTS,
    "table": TABLES,
    "column": COLUMNS,
    "sport": SPORTS,
    "unit": UNITS,
    "color": COLORS,
    "door": DOORS,
    "hotel": HOTELS,
    "list_name": LIST_NAMES,
    "tag": TAGS,
    "sky": ("sunny", "cloudy", "rainy", "windy", "foggy", "clear", "snowy"),
    "ok_word": ("ok", "done", "saved"),
    "call_status": ("ringing", "connected", "busy"),
    "order_status": ("packed", "shipped", "delayed", "out for delivery"),
}
NESTED: dict[str, tuple[str, ...]] = {
    "event": EVENTS,
    "task": TASKS,
    "message": MESSAGES,
    "topic": TOPICS,
    "issue": ISSUES,
    "command": COMMANDS,
}
